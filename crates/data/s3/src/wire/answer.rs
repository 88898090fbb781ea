//! A look into answers that are XML: S3's error codes, and whether a page of a listing is whole.
//!
//! No XML parser: `object_store` runs one over the same bytes. What is looked for are elements
//! without attributes, and text in them cannot contain `<`.

use http::StatusCode;

use super::Trace;
use crate::stats::Kind;

/// Notes what the answer explains; answers why it must not be believed, if so.
pub(super) fn fault(kind: Kind, status: StatusCode, body: &[u8], trace: &Trace) -> Option<String> {
    let text = String::from_utf8_lossy(body);
    if let Some((_, error)) = text.split_once("<Error>") {
        trace.explained(
            element(error, "Code").unwrap_or_default(),
            element(error, "Message").unwrap_or_default(),
        );
        // An error under status 200: a multipart upload that failed after the store had begun to
        // answer.
        return status.is_success().then(|| "the answer is an error under status 200".to_string());
    }
    if kind != Kind::List || !status.is_success() {
        return None;
    }
    if !text.trim_end().ends_with("</ListBucketResult>") {
        return Some("the page of the listing is cut off or none".to_string());
    }
    let contradiction = listing_contradiction(&text);
    if contradiction.is_some() {
        trace.contradicts();
    }
    contradiction
}

/// Why a whole page of a listing is not what it announces, if it is not.
fn listing_contradiction(text: &str) -> Option<String> {
    let there = text.matches("<Contents>").count();
    // Not every store counts its keys.
    if let Some(announced) =
        element(text, "KeyCount").and_then(|count| count.trim().parse::<usize>().ok())
        && announced != there
    {
        return Some(format!("the page of the listing says {announced} keys and has {there}"));
    }
    let goes_on = element(text, "IsTruncated").is_some_and(|announced| announced.trim() == "true");
    if goes_on && element(text, "NextContinuationToken").is_none_or(str::is_empty) {
        return Some("the page of the listing says that there are more and not where".to_string());
    }
    None
}

/// The text of the first element of that name.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(inside, _)| inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(count: &str, keys: usize, truncated: bool, token: &str) -> String {
        let keys = "<Contents><Key>a</Key><Size>1</Size></Contents>".repeat(keys);
        format!(
            "<?xml version=\"1.0\"?>\n<ListBucketResult \
             xmlns=\"x\"><IsTruncated>{truncated}</IsTruncated>{keys}\
             {count}{token}</ListBucketResult>\n"
        )
    }

    /// What is wrong with a page, and whether it contradicts itself.
    fn listed(text: &str) -> (Option<String>, bool) {
        let trace = Trace::default();
        let why = fault(Kind::List, StatusCode::OK, text.as_bytes(), &trace);
        (why, trace.seen().contradicts)
    }

    #[test]
    fn whole_pages_are_believed() {
        for good in [
            page("<KeyCount>2</KeyCount>", 2, false, ""),
            page("", 2, false, ""),
            page("<KeyCount>0</KeyCount>", 0, false, ""),
            page(
                "<KeyCount>1</KeyCount>",
                1,
                true,
                "<NextContinuationToken>t</NextContinuationToken>",
            ),
        ] {
            assert_eq!(listed(&good), (None, false), "{good}");
        }
    }

    #[test]
    fn pages_that_contradict_themselves_are_not() {
        for bad in [
            page("<KeyCount>3</KeyCount>", 2, false, ""),
            page("<KeyCount>2</KeyCount>", 2, true, ""),
            page("", 0, true, "<NextContinuationToken></NextContinuationToken>"),
        ] {
            let (why, contradicts) = listed(&bad);
            assert!(why.is_some() && contradicts, "{bad}");
        }
    }

    /// A page that is cut off is an error, but no contradiction: it may come whole another time.
    #[test]
    fn truncated_listing_pages() {
        let good = page("<KeyCount>2</KeyCount>", 2, false, "");
        for bad in [&good[..good.len() - 20], ""] {
            let (why, contradicts) = listed(bad);
            assert!(why.is_some() && !contradicts, "{bad}");
        }
    }

    #[test]
    fn errors_are_found_under_any_status() {
        let body =
            b"<?xml?>\n<Error><Code>SlowDown</Code><Message>less &amp; later</Message></Error>";
        let trace = Trace::default();
        assert!(fault(Kind::Put, StatusCode::OK, body, &trace).is_some());
        assert!(fault(Kind::Put, StatusCode::SERVICE_UNAVAILABLE, body, &trace).is_none());
        assert!(fault(Kind::Get, StatusCode::NOT_FOUND, b"not xml \xff", &trace).is_none());
    }
}
