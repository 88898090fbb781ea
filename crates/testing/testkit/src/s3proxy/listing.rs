//! Damage to the XML of a listing: text surgery that a client can parse, and that tells a lie.

const ENTRY: &str = "<Contents>";
const ENTRY_END: &str = "</Contents>";

/// Where the entries of a page begin and end.
fn entries(page: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(begin) = page[from..].find(ENTRY).map(|at| from + at)
        && let Some(end) = page[begin..].find(ENTRY_END).map(|at| begin + at + ENTRY_END.len())
    {
        found.push((begin, end));
        from = end;
    }
    found
}

/// The page without the entries from the `from`th on.
fn without(page: &str, from: usize) -> String {
    let all = entries(page);
    let Some(&(begin, _)) = all.get(from) else { return page.into() };
    // Entries may have other elements between them: only they go.
    let mut out = page[..begin].to_string();
    for (index, &(_, end)) in all.iter().enumerate().skip(from) {
        let next = all.get(index + 1).map_or(page.len(), |&(begin, _)| begin);
        out.push_str(&page[end..next]);
    }
    replace(&out, "KeyCount", &from.to_string())
}

/// The page with another text in an element that it has once.
fn replace(page: &str, element: &str, text: &str) -> String {
    let (open, close) = (format!("<{element}>"), format!("</{element}>"));
    match (page.find(&open), page.find(&close)) {
        (Some(begin), Some(end)) if begin < end => {
            format!("{}{open}{text}{}", &page[..begin], &page[end..])
        }
        _ => page.into(),
    }
}

/// The page without an element.
fn remove(page: &str, element: &str) -> String {
    let (open, close) = (format!("<{element}>"), format!("</{element}>"));
    match (page.find(&open), page.find(&close)) {
        (Some(begin), Some(end)) if begin < end => {
            format!("{}{}", &page[..begin], &page[end + close.len()..])
        }
        _ => page.into(),
    }
}

/// The first half of the entries, as if the listing ended there.
pub fn cut(page: &str) -> String {
    let shorter = without(page, entries(page).len() / 2);
    remove(&replace(&shorter, "IsTruncated", "false"), "NextContinuationToken")
}

/// The page without entries: a client that goes on by its token never learns of them.
pub fn gap(page: &str) -> String {
    without(page, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "<L><IsTruncated>true</IsTruncated><Contents><Key>a</Key></Contents>\n\
        <Contents><Key>b</Key></Contents><Contents><Key>c</Key></Contents>\
        <KeyCount>3</KeyCount><NextContinuationToken>t</NextContinuationToken></L>";

    #[test]
    fn pages_are_cut_and_emptied() {
        assert_eq!(
            cut(PAGE),
            "<L><IsTruncated>false</IsTruncated><Contents><Key>a</Key></Contents>\n<KeyCount>1</KeyCount></L>"
        );
        let gap = gap(PAGE);
        assert!(!gap.contains("Contents") && gap.contains("<KeyCount>0</KeyCount>"), "{gap}");
        assert!(gap.contains("<IsTruncated>true") && gap.contains("<NextContinuationToken>t<"));
        assert_eq!(cut("no listing"), "no listing");
    }
}
