//! Just enough JSON to write a report.

/// A text as a JSON string, quotes included.
pub fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A list of texts.
pub fn texts<'a>(items: impl IntoIterator<Item = &'a String>) -> String {
    let items: Vec<_> = items.into_iter().map(|t| text(t)).collect();
    format!("[{}]", items.join(","))
}

#[cfg(test)]
mod tests {
    #[test]
    fn escapes() {
        assert_eq!(super::text("a\"b\\c\n\u{1}é"), "\"a\\\"b\\\\c\\n\\u0001é\"");
        assert_eq!(super::texts(&["a".to_string(), "b".to_string()]), "[\"a\",\"b\"]");
    }
}
