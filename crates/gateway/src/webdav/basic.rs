//! Access keys as user and password of a request (RFC 7617): the key is the user, its secret the
//! password.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::header::AUTHORIZATION;

/// User and password of a request; none if it has none that can be read.
pub fn credentials(headers: &HeaderMap) -> Option<(String, String)> {
    let (scheme, value) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(STANDARD.decode(value.trim()).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.into(), password.into()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    /// What is read, and what is none.
    #[test]
    fn users_and_passwords() {
        let read = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
            credentials(&headers)
        };
        let expected = Some(("user".to_string(), "pass:word".to_string()));
        assert_eq!(read("Basic dXNlcjpwYXNzOndvcmQ="), expected);
        assert_eq!(read("basic  dXNlcjpwYXNzOndvcmQ="), expected);
        for bad in ["", "Basic", "Basic %", "Basic dXNlcg==", "Bearer dXNlcjpw", "Basic /////w=="] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(credentials(&HeaderMap::new()), None);
    }
}
