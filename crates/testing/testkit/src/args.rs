//! Command lines of the judges: `--name value` and `--flag`, nothing else.

use std::collections::BTreeMap;

/// Parsed arguments.
#[derive(Clone, Debug, Default)]
pub struct Args {
    values: BTreeMap<String, String>,
    flags: Vec<String>,
}

impl Args {
    /// Reads arguments; a name that is in neither list is an error.
    pub fn parse(
        words: impl IntoIterator<Item = String>,
        with_value: &[&str],
        flags: &[&str],
    ) -> Result<Self, String> {
        let mut args = Self::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let name =
                word.strip_prefix("--").ok_or_else(|| format!("unexpected argument: {word}"))?;
            if let Some((name, value)) = name.split_once('=')
                && with_value.contains(&name)
            {
                args.values.insert(name.into(), value.into());
            } else if with_value.contains(&name) {
                let value = words.next().ok_or_else(|| format!("--{name} needs a value"))?;
                args.values.insert(name.into(), value);
            } else if flags.contains(&name) {
                args.flags.push(name.into());
            } else {
                return Err(format!("unknown option: --{name}"));
            }
        }
        Ok(args)
    }

    /// Whether a flag is there.
    pub fn flag(&self, name: &str) -> bool {
        self.flags.iter().any(|f| f == name)
    }

    /// A value, if given.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// A value that must be there.
    pub fn need(&self, name: &str) -> Result<&str, String> {
        self.value(name).ok_or_else(|| format!("--{name} is missing"))
    }

    /// A number, or its default.
    pub fn number(&self, name: &str, default: u64) -> Result<u64, String> {
        match self.value(name) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| format!("--{name}: not a number: {text}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Args, String> {
        Args::parse(words.iter().map(|w| w.to_string()), &["seed", "dir"], &["json"])
    }

    #[test]
    fn reads_and_refuses() {
        let args = parse(&["--seed", "7", "--json", "--dir=/x"]).unwrap();
        assert_eq!(args.number("seed", 1), Ok(7));
        assert!(args.flag("json"));
        assert_eq!(args.need("dir"), Ok("/x"));
        assert!(
            parse(&["--sed", "7"]).is_err()
                && parse(&["seed"]).is_err()
                && parse(&["--seed"]).is_err()
        );
        assert!(parse(&["--seed", "x"]).unwrap().number("seed", 1).is_err());
    }
}
