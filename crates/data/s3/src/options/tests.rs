use super::*;

#[test]
fn a_full_url_is_read() {
    let url = "s3://photos/team/a?endpoint=http%3A%2F%2F127.0.0.1%3A9000/&region=eu-central-1\
               &path-style=true&conditional-put=false&sign-payload=false";
    let options = S3Options::parse(url).unwrap();
    assert_eq!((options.bucket.as_str(), options.prefix.as_str()), ("photos", "team/a"));
    assert_eq!(options.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
    assert_eq!(options.conditional_put, Some(false));
    assert!(!options.sign_payload);
    assert_eq!(options.url(), url);
    assert_eq!(options.bucket_url("eu-central-1"), "http://127.0.0.1:9000/photos");
    assert_eq!(options.key("objects/56/1"), "team/a/objects/56/1");
}

#[test]
fn a_bucket_alone_is_amazons() {
    let options = S3Options::parse("s3://photos/").unwrap();
    assert_eq!(options.key("x"), "x");
    assert!(!options.path_style);
    assert_eq!(options.bucket_url("eu-west-1"), "https://photos.s3.eu-west-1.amazonaws.com");
    let region = |name: &str| (name == "AWS_DEFAULT_REGION").then(|| "eu-west-3".to_string());
    assert_eq!(options.region_or(&region), "eu-west-3");
    assert_eq!(options.region_or(&|_| None), "us-east-1");
    let hosted =
        S3Options::parse("s3://photos?endpoint=https://minio.example&path-style=false").unwrap();
    assert_eq!(hosted.bucket_url("x"), "https://photos.minio.example");
}

#[test]
fn secrets_are_refused_and_not_repeated() {
    for url in [
        "s3://AKIAKEY:hunter2@photos/p",
        "s3://photos/p?secret-access-key=hunter2",
        "s3://photos/p?access_key_id=x&aws_session_token=hunter2",
        "s3://photos:hunter2/p",
        "s3://key:hunter/hunter2@photos/p",
    ] {
        let refusal = S3Options::parse(url).unwrap_err().to_string();
        assert!(refusal.contains("--credentials"), "{refusal}");
        assert!(!refusal.contains("hunter2"), "{refusal}");
    }
}

#[test]
fn what_is_not_understood_is_refused() {
    for url in [
        "s3://",
        "file:///x",
        "s3://ab",
        "s3://UPPER/p",
        "s3://photos//p",
        "s3://photos/a//b",
        "s3://photos/a/../b",
        "s3://photos/ä",
        "s3://photos/a b",
        "s3://photos/p#x",
        "s3://photos?endpoint=127.0.0.1:9000",
        "s3://photos?endpoint=http://",
        "s3://photos?endpoint=http://u:p@h/",
        "s3://photos?endpoint=http://h/path",
        "s3://photos?region=",
        "s3://photos?region=eu/central",
        "s3://photos?path-style=yes",
        "s3://photos?path-style",
        "s3://photos?region=a&region=b",
        "s3://photos?speed=fast",
        "s3://photos?region=%4",
        "s3://photos?region=%+4",
        "s3://photos?region=%ff",
    ] {
        let refusal = S3Options::parse(url).unwrap_err();
        assert!(matches!(refusal, OpenError::Url(_)), "{url}: {refusal}");
        assert!(refusal.to_string().contains("s3://BUCKET/PREFIX"), "{url}: {refusal}");
    }
    assert!(S3Options::parse(&format!("s3://photos/{}", "a".repeat(901))).is_err());
}

#[test]
fn limits_have_bounds() {
    let limits = S3Limits {
        max_uploads: 0,
        max_downloads: usize::MAX,
        multipart_bytes: 0,
        ..S3Limits::default()
    };
    let options = S3Options::parse("s3://photos").unwrap().limits(limits);
    assert_eq!(options.limits.max_uploads, 1);
    assert!(options.limits.max_downloads <= tokio::sync::Semaphore::MAX_PERMITS);
    assert_eq!(options.limits.part_bytes(), PART_BYTES_MIN);
    assert_eq!(S3Limits::default().part_bytes(), 8 << 20);
}
