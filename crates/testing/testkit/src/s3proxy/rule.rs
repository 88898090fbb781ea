//! Rules: which fault hits which requests. A rule is `FAULT[:NAME=VALUE[,NAME=VALUE]…]`; several
//! are separated by blanks.

use super::kind::Kind;

/// Rules that may be in force at once.
pub const RULES_MAX: usize = 64;

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request waits so long before it goes to the store, and up to `jitter_ms` more.
    Latency {
        /// Milliseconds.
        ms: u64,
        /// Milliseconds.
        jitter_ms: u64,
    },
    /// Bodies of all connections together pass at this rate, bytes a second; 0 is no limit.
    Bandwidth {
        /// To the store.
        up: u64,
        /// From the store.
        down: u64,
    },
    /// This status instead of the store's answer, with an S3 error of this code. The store does not
    /// see the request.
    Status {
        /// HTTP status.
        code: u16,
        /// Code in the XML document.
        error: String,
    },
    /// The connection is reset; the store does not see the request.
    Reset,
    /// No answer until the rule is gone; then the connection is reset. The store does not see the
    /// request.
    Hang,
    /// The store does it, then the connection is reset before a byte of the answer.
    LostAnswer,
    /// The body is cut at some byte and the connection closed.
    Truncate,
    /// The body ends early, and its length says so: a whole answer, shorter than what was asked
    /// for.
    Short,
    /// The body has bytes too many, and its length says so.
    Long,
    /// The body has the right length and wrong bytes.
    WrongBytes,
    /// The second half of a page of a listing is missing, and the listing claims to end there.
    ListCut,
    /// A page of a listing has no entries; the listing goes on behind it.
    ListGap,
    /// The page that was sent last is sent again.
    ListRepeat,
}

impl Fault {
    /// Its name in rules and counts.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Latency { .. } => "latency",
            Self::Bandwidth { .. } => "bandwidth",
            Self::Status { .. } => "status",
            Self::Reset => "reset",
            Self::Hang => "hang",
            Self::LostAnswer => "lost-answer",
            Self::Truncate => "truncate",
            Self::Short => "short",
            Self::Long => "long",
            Self::WrongBytes => "wrong-bytes",
            Self::ListCut => "list-cut",
            Self::ListGap => "list-gap",
            Self::ListRepeat => "list-repeat",
        }
    }

    /// Whether it comes on top of others: a request is hit by all such, but by one of the others
    /// only.
    pub fn adds_up(&self) -> bool {
        matches!(self, Self::Latency { .. } | Self::Bandwidth { .. })
    }

    fn usual_kinds(&self) -> Vec<Kind> {
        match self {
            Self::Truncate | Self::Short | Self::Long | Self::WrongBytes => vec![Kind::Get],
            Self::ListCut | Self::ListGap | Self::ListRepeat => vec![Kind::List],
            _ => Kind::ALL.to_vec(),
        }
    }
}

/// A fault and the requests that it may hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What happens.
    pub fault: Fault,
    /// To these kinds of requests.
    pub kinds: Vec<Kind>,
    /// Share of them that is hit, in millionths.
    pub rate_ppm: u64,
    /// Only to requests with a target that contains this text; empty: to all.
    pub contains: String,
    /// The first so many that the rule would hit are spared.
    pub skip: u64,
    /// So many are hit at most.
    pub count: u64,
    /// The rule as it was written.
    pub text: String,
}

impl Rule {
    /// Reads rules.
    ///
    /// # Errors
    /// Names the word that is not understood.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, String> {
        let rules = text.split_whitespace().map(Self::parse).collect::<Result<Vec<_>, _>>()?;
        if rules.len() > RULES_MAX {
            return Err(format!("{} rules, at most {RULES_MAX} are taken", rules.len()));
        }
        Ok(rules)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let bad = |why: &str| format!("rule {text}: {why}");
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        let mut fault = match name {
            "latency" => Fault::Latency { ms: 0, jitter_ms: 0 },
            "bandwidth" => Fault::Bandwidth { up: 0, down: 0 },
            "status" => Fault::Status { code: 500, error: String::new() },
            "reset" => Fault::Reset,
            "hang" => Fault::Hang,
            "lost-answer" => Fault::LostAnswer,
            "truncate" => Fault::Truncate,
            "short" => Fault::Short,
            "long" => Fault::Long,
            "wrong-bytes" => Fault::WrongBytes,
            "list-cut" => Fault::ListCut,
            "list-gap" => Fault::ListGap,
            "list-repeat" => Fault::ListRepeat,
            _ => return Err(bad("no such fault")),
        };
        let (mut kinds, mut rate_ppm, mut contains) =
            (fault.usual_kinds(), 1_000_000, String::new());
        let (mut skip, mut count) = (0, u64::MAX);
        for pair in options.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) =
                pair.split_once('=').ok_or_else(|| bad(&format!("{pair} has no value")))?;
            let number =
                || value.parse::<u64>().map_err(|_| bad(&format!("{value} is not a number")));
            match (key, &mut fault) {
                ("kind", _) => {
                    let named = value.split('+').map(Kind::parse).collect::<Option<Vec<_>>>();
                    kinds =
                        named.ok_or_else(|| bad(&format!("{value} is not a kind of requests")))?;
                }
                ("rate", _) => {
                    let rate = value.parse::<f64>().ok().filter(|rate| (0.0..=1.0).contains(rate));
                    let rate = rate.ok_or_else(|| bad("the rate is a share from 0 to 1"))?;
                    rate_ppm = (rate * 1e6).round() as u64;
                }
                ("match", _) => contains = value.into(),
                ("skip", _) => skip = number()?,
                ("count", _) => count = number()?,
                ("ms", Fault::Latency { ms, .. }) => *ms = number()?,
                ("jitter", Fault::Latency { jitter_ms, .. }) => *jitter_ms = number()?,
                ("up", Fault::Bandwidth { up, .. }) => *up = number()?,
                ("down", Fault::Bandwidth { down, .. }) => *down = number()?,
                ("code", Fault::Status { code, .. }) => {
                    let valid = value.parse().ok().filter(|code| (400..600).contains(code));
                    *code = valid.ok_or_else(|| bad("the code is from 400 to 599"))?;
                }
                ("error", Fault::Status { error, .. }) => *error = value.into(),
                _ => return Err(bad(&format!("{name} knows no {key}"))),
            }
        }
        if let Fault::Status { code, error } = &mut fault
            && error.is_empty()
        {
            *error = match code {
                403 => "AccessDenied",
                404 => "NoSuchKey",
                503 => "SlowDown",
                _ => "InternalError",
            }
            .into();
        }
        Ok(Self { fault, kinds, rate_ppm, contains, skip, count, text: text.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read() {
        let rules = Rule::parse_all(
            " latency:ms=20,jitter=5\nstatus:code=503,kind=put+get,rate=0.25,skip=1,count=3,\
             match=/00/ wrong-bytes",
        )
        .unwrap();
        assert_eq!(rules[0].fault, Fault::Latency { ms: 20, jitter_ms: 5 });
        assert_eq!(rules[1].fault, Fault::Status { code: 503, error: "SlowDown".into() });
        assert_eq!((rules[1].rate_ppm, rules[1].skip, rules[1].count), (250_000, 1, 3));
        assert_eq!(
            (rules[1].kinds.as_slice(), rules[1].contains.as_str()),
            (&[Kind::Put, Kind::Get][..], "/00/")
        );
        assert_eq!(
            (&rules[2].fault, rules[2].kinds.as_slice()),
            (&Fault::WrongBytes, &[Kind::Get][..])
        );
        assert!(Rule::parse_all("").unwrap().is_empty());
    }

    #[test]
    fn bad_rules_are_named() {
        for bad in [
            "latenc",
            "latency:ms",
            "latency:ms=x",
            "reset:code=500",
            "reset:rate=2",
            "reset:kind=gets",
            "status:code=200",
        ] {
            let why = Rule::parse_all(bad).unwrap_err();
            assert!(why.contains(bad), "{why}");
        }
        assert!(Rule::parse_all(&"reset ".repeat(RULES_MAX + 1)).is_err());
    }
}
