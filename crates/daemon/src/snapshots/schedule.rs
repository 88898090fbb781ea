//! Schedules of snapshots: how often one of a directory is made, and how many are kept.
//!
//! A schedule is a list of [`ScheduleRule`]s, `1h=24,1d=7`: one snapshot in each period, the newest
//! so many of which stay. Periods begin at midnight UTC, weeks on Monday, so a snapshot's name says
//! which period it is of: `auto-1h-2026-11-25T22:00Z`. What is due follows from the time, the names
//! that are there and the schedule ([`ScheduleRule::due`]). Nothing else is kept, so a restart or a
//! jump of the clock costs at most one snapshot too many or too few: a snapshot of a period that
//! has not begun counts for nothing and stays until its time, and retention counts snapshots, not
//! their age.

use std::fmt;

use kestrel_types::clock::{Nanos, SECOND};

use crate::logger::utc;

/// Most rules of a schedule.
pub const RULES_MAX: usize = 16;

/// Most snapshots that a rule keeps.
pub const KEEP_MAX: u32 = 10_000;

/// Longest schedule as text, bytes.
pub const TEXT_BYTES_MAX: usize = 1024;

/// What names of snapshots begin with that a schedule made.
pub const PREFIX: &str = "auto-";

/// Units of a period, longest first: letter, seconds.
const UNITS: [(char, i64); 4] = [('w', 7 * 86_400), ('d', 86_400), ('h', 3_600), ('m', 60)];

/// Longest period, seconds: a year of 366 days.
const PERIOD_MAX: i64 = 366 * 86_400;

/// When the first week began that is counted from: Monday, 5 January 1970.
const FIRST_MONDAY: i64 = 4 * 86_400;

/// Form of the time in a name; a digit stands for any digit.
const TIME_FORM: &[u8] = b"0000-00-00T00:00Z";

/// A time from one snapshot to the next, in seconds; a whole number of minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(i64);

impl Period {
    fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no period; write it with m, h, d or w, as 30m or 1d");
        let unit = text.chars().last().ok_or_else(bad)?;
        let (unit, seconds) =
            UNITS.into_iter().find(|(letter, _)| *letter == unit).ok_or_else(bad)?;
        let number = text.strip_suffix(unit).ok_or_else(bad)?;
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad());
        }
        let whole = number.parse::<i64>().ok().and_then(|number| number.checked_mul(seconds));
        match whole {
            Some(0) => Err(format!("{text:?}: a period has at least a minute")),
            Some(whole) if whole <= PERIOD_MAX => Ok(Self(whole)),
            _ => Err(format!("{text:?}: a period has at most 366 days")),
        }
    }

    /// When the period began in which `now` lies, in seconds since 1970.
    fn begin(self, now: Nanos) -> i64 {
        let first = if self.0 % UNITS[0].1 == 0 { FIRST_MONDAY } else { 0 };
        let seconds = now.div_euclid(SECOND) - first;
        seconds - seconds.rem_euclid(self.0) + first
    }
}

impl fmt::Display for Period {
    /// In the longest unit of which it is a whole number: equal periods read the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.into_iter().find(|(_, seconds)| self.0 % seconds == 0);
        let (letter, seconds) = unit.unwrap_or(('m', 60));
        write!(f, "{}{letter}", self.0 / seconds)
    }
}

/// One snapshot in each period, of which the newest `keep` stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduleRule {
    /// The period.
    pub period: Period,
    /// How many are kept, at least 1.
    pub keep: u32,
}

/// A snapshot of the directory, as far as a schedule looks at it.
#[derive(Debug, Clone, Copy)]
pub struct Existing<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// A tag keeps it.
    pub held: bool,
}

/// What a rule has to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DueWork {
    /// The name of the snapshot that is due.
    pub make: Option<String>,
    /// Names of those that go once it is there.
    pub remove: Vec<Vec<u8>>,
}

impl ScheduleRule {
    fn parse(text: &str) -> Result<Self, String> {
        let (period, keep) = text
            .split_once('=')
            .ok_or_else(|| format!("{text:?} is no rule; write PERIOD=NUMBER, as 1h=24"))?;
        let period = Period::parse(period.trim())?;
        let keep = keep.trim();
        let number = keep.parse().ok().filter(|keep| (1..=KEEP_MAX).contains(keep));
        let keep = number
            .ok_or_else(|| format!("{keep:?}: a rule keeps 1 to {KEEP_MAX} snapshots, as 1h=24"))?;
        Ok(Self { period, keep })
    }

    fn prefix(&self) -> String {
        format!("{PREFIX}{}-", self.period)
    }

    /// The name of the snapshot of the period in which `now` lies.
    pub fn name(&self, now: Nanos) -> String {
        let begin = utc(self.period.begin(now).saturating_mul(SECOND));
        let minute = begin.get(..TIME_FORM.len() - 1).unwrap_or(&begin);
        format!("{}{minute}Z", self.prefix())
    }

    /// When the next period begins.
    pub fn next(&self, now: Nanos) -> Nanos {
        self.period.begin(now).saturating_add(self.period.0).saturating_mul(SECOND)
    }

    /// Whether a snapshot with this name is one of this rule.
    fn is_own(&self, name: &[u8]) -> bool {
        let Some(time) = name.strip_prefix(self.prefix().as_bytes()) else { return false };
        let alike = |(is, form): (&u8, &u8)| match form {
            b'0' => is.is_ascii_digit(),
            _ => is == form,
        };
        time.len() == TIME_FORM.len() && time.iter().zip(TIME_FORM).all(alike)
    }

    /// What is due of a directory with these snapshots. A held snapshot stays, and is counted among
    /// those that are kept; one of a later period (the clock was ahead) stays and is not.
    pub fn due(&self, now: Nanos, existing: &[Existing<'_>]) -> DueWork {
        let name = self.name(now);
        // The form of a name makes its order that of time.
        let mut own: Vec<_> = existing
            .iter()
            .filter(|one| self.is_own(one.name) && one.name <= name.as_bytes())
            .copied()
            .collect();
        let is_made = own.iter().any(|one| one.name == name.as_bytes());
        let make = (!is_made).then(|| name.clone());
        if !is_made {
            own.push(Existing { name: name.as_bytes(), held: true });
        }
        own.sort_by(|one, other| other.name.cmp(one.name));
        let keep = usize::try_from(self.keep).unwrap_or(usize::MAX);
        let old = own.iter().skip(keep).filter(|one| !one.held);
        DueWork { make, remove: old.map(|one| one.name.to_vec()).collect() }
    }
}

impl fmt::Display for ScheduleRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.period, self.keep)
    }
}

/// Rules, the shortest period first, no two of the same period. At least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotSchedule(Vec<ScheduleRule>);

impl SnapshotSchedule {
    /// Reads `1h=24,1d=7,1w=4`.
    ///
    /// # Errors
    /// In words, with an example.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(format!("a schedule has at most {TEXT_BYTES_MAX} bytes"));
        }
        let mut rules: Vec<ScheduleRule> = text
            .split(',')
            .map(|rule| ScheduleRule::parse(rule.trim()))
            .collect::<Result<_, _>>()?;
        if rules.len() > RULES_MAX {
            return Err(format!("a schedule has at most {RULES_MAX} rules"));
        }
        rules.sort_by_key(|rule| rule.period);
        if let Some(pair) = rules.windows(2).find(|pair| pair[0].period == pair[1].period) {
            return Err(format!("the period {} stands in two rules", pair[0].period));
        }
        Ok(Self(rules))
    }

    /// Its rules.
    pub fn rules(&self) -> &[ScheduleRule] {
        &self.0
    }
}

impl fmt::Display for SnapshotSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, rule) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{rule}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wednesday, 25 November 2026, 22:40:10 UTC.
    const NOW: Nanos = 1_795_646_410 * SECOND;
    const HOUR: Nanos = 3_600 * SECOND;

    fn rule(text: &str) -> ScheduleRule {
        ScheduleRule::parse(text).unwrap()
    }

    fn due(
        rule: &ScheduleRule,
        now: Nanos,
        names: &[&str],
        held: &[&str],
    ) -> (Option<String>, Vec<String>) {
        let existing: Vec<_> = names
            .iter()
            .map(|name| Existing { name: name.as_bytes(), held: held.contains(name) })
            .collect();
        let work = rule.due(now, &existing);
        let text = |name: &Vec<u8>| String::from_utf8(name.clone()).unwrap();
        (work.make, work.remove.iter().map(text).collect())
    }

    /// A schedule reads back as it was written, in the longest units and sorted.
    #[test]
    fn text_of_schedules() {
        for (text, becomes) in [
            ("1h=24", "1h=24"),
            ("1w=4, 60m=24 ,7d=1", ""),
            ("1d=7,60m=24,2w=4", "1h=24,1d=7,2w=4"),
            ("90m=1,36h=2,366d=1", "90m=1,36h=2,366d=1"),
        ] {
            let read = SnapshotSchedule::parse(text);
            if becomes.is_empty() {
                assert!(read.unwrap_err().contains("1w stands in two rules"), "{text}");
                continue;
            }
            assert_eq!(read.unwrap().to_string(), becomes);
        }
        for text in [
            "",
            "1h",
            "1h=",
            "=3",
            "h=1",
            "1x=1",
            "0h=1",
            "1h=0",
            "1h=10001",
            "367d=1",
            "-1h=1",
            "+1h=1",
            "1h=1,,1d=1",
            "1h=1;1d=2",
            "9999999999999999999w=1",
            "1\u{e9}=1",
        ] {
            assert!(SnapshotSchedule::parse(text).is_err(), "{text}");
        }
        let many: Vec<String> = (1..=17).map(|minutes| format!("{minutes}m=1")).collect();
        assert!(SnapshotSchedule::parse(&many.join(",")).unwrap_err().contains("16 rules"));
    }

    /// The period of a snapshot is in its name, in UTC; weeks begin on Monday.
    #[test]
    fn names_by_period() {
        for (text, name, next) in [
            ("1h=1", "auto-1h-2026-11-25T22:00Z", 1_795_647_600),
            ("15m=1", "auto-15m-2026-11-25T22:30Z", 1_795_646_700),
            ("1d=1", "auto-1d-2026-11-25T00:00Z", 1_795_651_200),
            ("1w=1", "auto-1w-2026-11-23T00:00Z", 1_795_996_800),
        ] {
            assert_eq!((rule(text).name(NOW), rule(text).next(NOW)), (name.into(), next * SECOND));
        }
        assert_eq!(rule("1h=1").name(-1), "auto-1h-1969-12-31T23:00Z");
    }

    /// A period has one snapshot, whenever it is looked at and however often.
    #[test]
    fn one_snapshot_for_a_period() {
        let hourly = rule("1h=2");
        let now = "auto-1h-2026-11-25T22:00Z";
        assert_eq!(due(&hourly, NOW, &[], &[]), (Some(now.into()), vec![]));
        assert_eq!(due(&hourly, NOW, &[now], &[]), (None, vec![]));
        let next = "auto-1h-2026-11-25T23:00Z";
        assert_eq!(due(&hourly, NOW + HOUR, &[now], &[]), (Some(next.into()), vec![]));
        // The process was down for some periods: one snapshot, not one for each.
        let later = due(&hourly, NOW + 5 * HOUR, &[now, next], &[]);
        assert_eq!(later, (Some("auto-1h-2026-11-26T03:00Z".into()), vec![now.into()]));
    }

    /// Only the rule's own snapshots go, the oldest first; held ones stay.
    #[test]
    fn retention_by_number() {
        let hourly = rule("1h=2");
        let names = [
            "auto-1h-2026-11-25T19:00Z",
            "auto-1h-2026-11-25T20:00Z",
            "auto-1h-2026-11-25T21:00Z",
            "auto-1h-2026-11-25T22:00Z",
            "auto-1d-2020-01-01T00:00Z",
            "auto-1h-2020-01-01",
            "auto-1h-2020-01-01T00:00Z.old",
            "auto-1h-20x0-01-01T00:00Z",
            "mine",
        ];
        assert_eq!(due(&hourly, NOW, &names, &[]).1, [names[1], names[0]]);
        assert_eq!(due(&hourly, NOW, &names, &[names[1]]).1, [names[0]]);
        // A held one counts among those that are kept.
        assert_eq!(due(&hourly, NOW, &names[..3], &[names[2]]).1, [names[1], names[0]]);
    }

    /// After a jump of the clock nothing is lost that the schedule keeps.
    #[test]
    fn jumps_of_the_clock() {
        let hourly = rule("1h=2");
        let (old, now) = ("auto-1h-2026-11-25T21:00Z", "auto-1h-2026-11-25T22:00Z");
        // Ten years ahead: one snapshot more, one less.
        let ahead = "auto-1h-2036-11-22T22:00Z";
        let jumped = due(&hourly, NOW + 87_600 * HOUR, &[old, now], &[]);
        assert_eq!(jumped, (Some(ahead.into()), vec![old.into()]));
        // And back: what is of a later period neither counts nor goes.
        assert_eq!(due(&hourly, NOW, &[old, now, ahead], &[]), (None, vec![]));
        // Back by a day: that day's snapshots are made again, and keep their numbers.
        let day_before = "auto-1h-2026-11-24T22:00Z";
        let back = due(&hourly, NOW - 24 * HOUR, &[old, now], &[]);
        assert_eq!(back, (Some(day_before.into()), vec![]));
        assert_eq!(due(&hourly, NOW, &[day_before, old, now], &[]).1, [day_before]);
    }
}
