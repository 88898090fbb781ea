//! What an operation did on one side, its form on the wire between processes, and how two are
//! compared.

use crate::compare::op::show_bytes;
use crate::errno;

/// Modification and change time, nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Modification time.
    pub mtime: i64,
    /// Change time.
    pub ctime: i64,
}

/// Times of one object before and after an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeProbe {
    /// Which object.
    pub label: String,
    /// Before; absent when it did not exist.
    pub before: Option<Times>,
    /// After; absent when it does not exist.
    pub after: Option<Times>,
    /// Wall clock when the operation started.
    pub start: i64,
}

/// Everything seen of one operation on one side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The result, or minus errno.
    pub ret: i64,
    /// Named facts that must be equal on both sides.
    pub fields: Vec<(String, String)>,
    /// Bytes read.
    pub data: Vec<u8>,
    /// Times before and after, compared by rule.
    pub times: Vec<TimeProbe>,
    /// What is wrong on this side by itself.
    pub violations: Vec<String>,
    /// A process id in the answer (`F_GETLK`), which the driver turns into the actor's name.
    pub pid: i64,
}

impl Outcome {
    /// An outcome with a result only.
    pub fn of(ret: Result<i64, i32>) -> Self {
        Self { ret: ret.unwrap_or_else(|e| -i64::from(e)), ..Self::default() }
    }

    /// Adds a fact.
    pub fn field(&mut self, name: &str, value: impl ToString) {
        self.fields.push((name.to_string(), value.to_string()));
    }

    /// The result in words.
    pub fn show_ret(&self) -> String {
        if self.ret < 0 { errno::name((-self.ret) as i32) } else { self.ret.to_string() }
    }

    /// The form in which a helper process sends it.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Vec::new();
        put_i64(&mut w, self.ret);
        put_i64(&mut w, self.pid);
        put_bytes(&mut w, &self.data);
        put_i64(&mut w, self.fields.len() as i64);
        for (name, value) in &self.fields {
            put_bytes(&mut w, name.as_bytes());
            put_bytes(&mut w, value.as_bytes());
        }
        put_i64(&mut w, self.violations.len() as i64);
        for text in &self.violations {
            put_bytes(&mut w, text.as_bytes());
        }
        put_i64(&mut w, self.times.len() as i64);
        for probe in &self.times {
            put_bytes(&mut w, probe.label.as_bytes());
            put_i64(&mut w, probe.start);
            for times in [probe.before, probe.after] {
                put_i64(&mut w, times.map_or(i64::MIN, |t| t.mtime));
                put_i64(&mut w, times.map_or(i64::MIN, |t| t.ctime));
            }
        }
        w
    }

    /// Reads what [`Outcome::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let r = &mut &bytes[..];
        let mut out =
            Self { ret: get_i64(r)?, pid: get_i64(r)?, data: get_bytes(r)?, ..Self::default() };
        for _ in 0..get_i64(r)? {
            out.fields.push((get_text(r)?, get_text(r)?));
        }
        for _ in 0..get_i64(r)? {
            out.violations.push(get_text(r)?);
        }
        for _ in 0..get_i64(r)? {
            let (label, start) = (get_text(r)?, get_i64(r)?);
            let mut times = [None; 2];
            for slot in &mut times {
                let (mtime, ctime) = (get_i64(r)?, get_i64(r)?);
                *slot = (mtime != i64::MIN).then_some(Times { mtime, ctime });
            }
            out.times.push(TimeProbe { label, before: times[0], after: times[1], start });
        }
        Some(out)
    }
}

fn put_i64(w: &mut Vec<u8>, value: i64) {
    w.extend_from_slice(&value.to_le_bytes());
}

fn put_bytes(w: &mut Vec<u8>, bytes: &[u8]) {
    put_i64(w, bytes.len() as i64);
    w.extend_from_slice(bytes);
}

fn get_i64(r: &mut &[u8]) -> Option<i64> {
    let (head, rest) = r.split_first_chunk::<8>()?;
    *r = rest;
    Some(i64::from_le_bytes(*head))
}

fn get_bytes(r: &mut &[u8]) -> Option<Vec<u8>> {
    let len = usize::try_from(get_i64(r)?).ok()?;
    let (head, rest) = r.split_at_checked(len)?;
    *r = rest;
    Some(head.to_vec())
}

fn get_text(r: &mut &[u8]) -> Option<String> {
    String::from_utf8(get_bytes(r)?).ok()
}

/// A difference between the two sides. `key` names its kind, so that shrinking keeps to the same
/// bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Operation and what differs: `rename ret`.
    pub key: String,
    /// The difference in words.
    pub text: String,
}

/// How far behind its own clock a file system may stamp times: kernels use a coarse clock.
const TICK_NS: i64 = 20_000_000;
/// Below this age, an unchanged time proves nothing about whether the reference updates it.
const QUIET_NS: i64 = 60_000_000;

/// The first difference between `a` (under test) and `b` (reference).
pub fn difference(kind: &str, a: &Outcome, b: &Outcome) -> Option<Difference> {
    let found = |what: &str, text: String| Some(Difference { key: format!("{kind} {what}"), text });
    if let Some(text) = a.violations.first() {
        return found("violation", format!("A breaks a rule: {text}"));
    }
    if a.ret != b.ret {
        return found("result", format!("result: A {}, B {}", a.show_ret(), b.show_ret()));
    }
    for (i, (name, value)) in a.fields.iter().enumerate() {
        match b.fields.get(i) {
            Some((other, theirs)) if other == name && theirs == value => {}
            Some((other, theirs)) if other == name => {
                return found(name, format!("{name}: {}", show_text_difference(value, theirs)));
            }
            _ => return found(name, format!("{name}: only on A: {value}")),
        }
    }
    if let Some((name, value)) = b.fields.get(a.fields.len()) {
        return found(name, format!("{name}: only on B: {value}"));
    }
    if a.data != b.data {
        return found("data", show_data_difference(&a.data, &b.data));
    }
    for (pa, pb) in a.times.iter().zip(&b.times) {
        if let Some((what, text)) = time_difference(pa, pb) {
            return found(
                &format!("{what} of {}", pa.label),
                format!("{what} of {}: {text}", pa.label),
            );
        }
    }
    None
}

fn time_difference(a: &TimeProbe, b: &TimeProbe) -> Option<(&'static str, String)> {
    let (before_a, after_a) = (a.before?, a.after?);
    let (before_b, after_b) = (b.before?, b.after?);
    if after_a.ctime < before_a.ctime {
        return Some(("ctime", format!("A went back by {} ns", before_a.ctime - after_a.ctime)));
    }
    let rules = [
        ("mtime", before_a.mtime, after_a.mtime, before_b.mtime, after_b.mtime),
        ("ctime", before_a.ctime, after_a.ctime, before_b.ctime, after_b.ctime),
    ];
    for (what, a0, a1, b0, b1) in rules {
        let updated_b = b1 != b0 && b1 >= b.start - TICK_NS;
        if updated_b && a1 < a.start - TICK_NS {
            return Some((
                what,
                format!("B updated it, A did not (A's is {} ms old)", (a.start - a1) / 1_000_000),
            ));
        }
        if a1 != a0 && a1 >= a.start - TICK_NS && b1 == b0 && b1 < b.start - QUIET_NS {
            return Some((what, "A updated it, B did not".into()));
        }
    }
    None
}

fn show_text_difference(a: &str, b: &str) -> String {
    let (la, lb): (Vec<_>, Vec<_>) = (a.lines().collect(), b.lines().collect());
    if la.len() <= 1 && lb.len() <= 1 {
        return format!("A {a}, B {b}");
    }
    let mut out = String::from("lines that differ");
    let mut shown = 0;
    for line in la.iter().filter(|l| !lb.contains(l)) {
        out.push_str(&format!("\n    A: {line}"));
        shown += 1;
        if shown == 8 {
            break;
        }
    }
    for line in lb.iter().filter(|l| !la.contains(l)).take(8) {
        out.push_str(&format!("\n    B: {line}"));
    }
    out
}

fn show_data_difference(a: &[u8], b: &[u8]) -> String {
    let at = a.iter().zip(b).position(|(x, y)| x != y).unwrap_or(a.len().min(b.len()));
    let last = a.iter().zip(b).rposition(|(x, y)| x != y).unwrap_or(at);
    let show = |d: &[u8]| {
        let end = d.len().min(at + 16);
        show_bytes(d.get(at..end).unwrap_or_default())
    };
    format!(
        "bytes: lengths A {}, B {}; first differ at {at}, last at {last}: A {}, B {}",
        a.len(),
        b.len(),
        show(a),
        show(b)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(m0: i64, m1: i64) -> TimeProbe {
        let t = |m| Some(Times { mtime: m, ctime: 5 });
        TimeProbe { label: "x".into(), before: t(m0), after: t(m1), start: 1_000_000_000 }
    }

    #[test]
    fn encode_and_decode() {
        let mut out = Outcome::of(Err(libc::ENOENT));
        out.field("size", 12);
        out.data = vec![1, 2, 3];
        out.violations.push("bad".into());
        out.times.push(probe(1, 2));
        out.times.push(TimeProbe { before: None, ..probe(1, 2) });
        out.pid = 77;
        assert_eq!(Outcome::decode(&out.encode()), Some(out.clone()));
        let bytes = out.encode();
        assert!((0..bytes.len()).all(|n| Outcome::decode(&bytes[..n]).is_none()));
    }

    #[test]
    fn differences_are_found() {
        let a = Outcome::of(Ok(3));
        assert_eq!(difference("x", &a, &a), None);
        assert_eq!(
            difference("x", &a, &Outcome::of(Err(2))).map(|d| d.key),
            Some("x result".into())
        );
        let (mut b, mut c) = (a.clone(), a.clone());
        b.field("nlink", 1);
        c.field("nlink", 2);
        assert!(difference("x", &b, &c).is_some());
        assert!(difference("x", &b, &a).is_some());
        assert!(difference("x", &a, &b).is_some());
        let d = Outcome { data: vec![1], ..a.clone() };
        assert!(difference("x", &a, &d).is_some());
    }

    #[test]
    fn times_by_rule() {
        let with = |p: TimeProbe| Outcome { times: vec![p], ..Outcome::default() };
        let now = 1_000_000_100;
        let (same, updated) = (with(probe(7, 7)), with(probe(7, now)));
        assert_eq!(difference("x", &updated, &updated), None);
        assert_eq!(difference("x", &same, &same), None);
        assert!(difference("x", &same, &updated).is_some(), "A forgot to update");
        assert!(difference("x", &updated, &same).is_some(), "A updated what B leaves");
        let recent = with(probe(999_990_000, 999_990_000));
        assert_eq!(difference("x", &updated, &recent), None, "too recent to tell");
    }
}
