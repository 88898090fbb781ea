//! Rows as a table, CSV or JSON, written as they come.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{self, Write};

use kestrel_daemon::ask::path_value;
use kestrel_sql::{RowSink, SqlValue};
use kestrel_types::hex::to_hex;
use serde_json::Value;

use crate::verbs::shown_name;

/// Rows by which the widths of columns are chosen.
const SAMPLE_ROWS: usize = 256;

/// Bytes of such rows after which no more are waited for.
const SAMPLE_BYTES: usize = 1 << 20;

/// Widest column of a table; what is longer moves the rest of its line.
const WIDTH_MAX: usize = 80;

/// How rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Columns for people.
    Table,
    /// RFC 4180, with a line feed alone at the end of a line. NULL is empty, and an empty text is
    /// two quotes.
    Csv,
    /// A list of objects.
    Json,
}

/// A cell of a table: its text, and whether it is a number.
type Cell = (String, bool);

/// See the module's header.
pub struct Output<W> {
    out: W,
    format: Format,
    names: Vec<String>,
    /// Rows so far.
    rows: u64,
    /// The first rows of a table; none: its widths are chosen.
    sample: Option<Vec<Vec<Cell>>>,
    sample_bytes: usize,
    widths: Vec<usize>,
}

impl<W: Write> Output<W> {
    /// Nothing is written yet.
    pub fn new(out: W, format: Format) -> Self {
        let (names, widths) = (Vec::new(), Vec::new());
        Self { out, format, names, rows: 0, sample: Some(Vec::new()), sample_bytes: 0, widths }
    }

    /// Rows that came.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Writes what is left: no more rows come.
    ///
    /// # Errors
    /// Those of writing.
    pub fn end(&mut self) -> io::Result<()> {
        match self.format {
            Format::Table => self.write_sample()?,
            Format::Csv => {}
            Format::Json => self.out.write_all(if self.rows == 0 { b"]\n" } else { b"\n]\n" })?,
        }
        self.out.flush()
    }

    /// Chooses the widths of columns by the rows so far, and writes these.
    fn write_sample(&mut self) -> io::Result<()> {
        let Some(sample) = self.sample.take() else { return Ok(()) };
        self.widths = self.names.iter().map(|name| width_of(name)).collect();
        for row in &sample {
            for (width, (text, _)) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(width_of(text)).min(WIDTH_MAX);
            }
        }
        let is_number = |column: usize| {
            sample.first().and_then(|row| row.get(column)).is_some_and(|(_, is_number)| *is_number)
        };
        let names = self.names.iter().enumerate();
        let names = names.map(|(column, name)| (name.clone(), is_number(column))).collect();
        self.write_line(names)?;
        sample.into_iter().try_for_each(|row| self.write_line(row))
    }

    fn write_line(&mut self, cells: Vec<Cell>) -> io::Result<()> {
        let mut line = String::new();
        for (column, (text, is_number)) in cells.into_iter().enumerate() {
            if column > 0 {
                line.push_str("  ");
            }
            let width = self.widths.get(column).copied().unwrap_or(0);
            let _ = match is_number {
                true => write!(line, "{text:>width$}"),
                false => write!(line, "{text:width$}"),
            };
        }
        writeln!(self.out, "{}", line.trim_end_matches(' '))
    }

    fn write_csv<'a>(&mut self, fields: impl Iterator<Item = SqlValue<'a>>) -> io::Result<()> {
        for (column, field) in fields.enumerate() {
            if column > 0 {
                self.out.write_all(b",")?;
            }
            match field {
                SqlValue::Null => {}
                SqlValue::Text(text) => self.out.write_all(&quoted(text))?,
                other => self.out.write_all(shown(&other).as_bytes())?,
            }
        }
        self.out.write_all(b"\n")
    }

    fn write_json(&mut self, values: &[SqlValue<'_>]) -> io::Result<()> {
        self.out.write_all(if self.rows == 1 { b"\n  {" } else { b",\n  {" })?;
        for (column, (name, value)) in self.names.iter().zip(values).enumerate() {
            if column > 0 {
                self.out.write_all(b", ")?;
            }
            serde_json::to_writer(&mut self.out, name)?;
            self.out.write_all(b": ")?;
            serde_json::to_writer(&mut self.out, &json_of(value))?;
        }
        self.out.write_all(b"}")
    }
}

impl<W: Write> RowSink for Output<W> {
    fn columns(&mut self, names: &[&str]) -> io::Result<()> {
        self.names = names.iter().map(|name| (*name).to_string()).collect();
        match self.format {
            Format::Table => Ok(()),
            Format::Csv => self.write_csv(names.iter().map(|name| SqlValue::Text(name.as_bytes()))),
            Format::Json => {
                let mut known = HashSet::new();
                if let Some(twice) = names.iter().find(|name| !known.insert(**name)) {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidInput,
                        format!("two columns are named {twice:?}; name one of them with as"),
                    ));
                }
                self.out.write_all(b"[")
            }
        }
    }

    fn row(&mut self, values: &[SqlValue<'_>]) -> io::Result<()> {
        self.rows += 1;
        match self.format {
            Format::Csv => self.write_csv(values.iter().copied()),
            Format::Json => self.write_json(values),
            Format::Table => {
                let cells: Vec<Cell> = values.iter().map(cell_of).collect();
                let Some(sample) = &mut self.sample else { return self.write_line(cells) };
                self.sample_bytes += cells.iter().map(|(text, _)| text.len()).sum::<usize>();
                sample.push(cells);
                match sample.len() >= SAMPLE_ROWS || self.sample_bytes >= SAMPLE_BYTES {
                    true => self.write_sample(),
                    false => Ok(()),
                }
            }
        }
    }
}

/// About the columns of a terminal that a text takes.
fn width_of(text: &str) -> usize {
    text.chars().count()
}

fn cell_of(value: &SqlValue<'_>) -> Cell {
    match value {
        SqlValue::Null => ("-".into(), false),
        SqlValue::Text(text) => (shown_name(text), false),
        SqlValue::Blob(_) => (shown(value), false),
        SqlValue::Integer(_) | SqlValue::Real(_) => (shown(value), true),
    }
}

/// A value as SQL has it, but for texts.
fn shown(value: &SqlValue<'_>) -> String {
    match value {
        SqlValue::Null => String::new(),
        SqlValue::Integer(number) => number.to_string(),
        // With a point, so that it is seen to be no integer.
        SqlValue::Real(number) => format!("{number:?}"),
        SqlValue::Text(text) => String::from_utf8_lossy(text).into_owned(),
        SqlValue::Blob(bytes) => format!("x'{}'", to_hex(bytes)),
    }
}

fn json_of(value: &SqlValue<'_>) -> Value {
    match value {
        SqlValue::Null => Value::Null,
        SqlValue::Integer(number) => (*number).into(),
        SqlValue::Real(number) => (*number).into(),
        SqlValue::Text(text) => path_value(text),
        SqlValue::Blob(bytes) => (*bytes).into(),
    }
}

/// A text as a field of CSV.
fn quoted(text: &[u8]) -> Vec<u8> {
    if !text.is_empty() && !text.iter().any(|byte| b"\",\r\n".contains(byte)) {
        return text.into();
    }
    let mut field = vec![b'"'];
    for byte in text {
        if *byte == b'"' {
            field.push(b'"');
        }
        field.push(*byte);
    }
    field.push(b'"');
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: Format, names: &[&str], rows: &[&[SqlValue<'_>]]) -> String {
        let mut out = Vec::new();
        let mut output = Output::new(&mut out, format);
        output.columns(names).unwrap();
        rows.iter().for_each(|row| output.row(row).unwrap());
        output.end().unwrap();
        String::from_utf8(out).unwrap()
    }

    fn text(text: &str) -> SqlValue<'_> {
        SqlValue::Text(text.as_bytes())
    }

    /// Columns are as wide as what is in them; numbers are to the right, control characters shown.
    #[test]
    fn rows_as_a_table() {
        let rows: [&[SqlValue<'_>]; 3] = [
            &[text("a\nb"), SqlValue::Integer(5), SqlValue::Blob(b"\xff\0")],
            &[text("äö"), SqlValue::Integer(-1000), SqlValue::Null],
            &[text(""), SqlValue::Real(2.0), text("x")],
        ];
        let table = "name   size  value\na\\nb      5  x'ff00'\näö    -1000  -\n        2.0  x\n";
        assert_eq!(written(Format::Table, &["name", "size", "value"], &rows), table);
        assert_eq!(written(Format::Table, &["a", "b"], &[]), "a  b\n");
    }

    /// Fields with commas, quotes and ends of lines are quoted; NULL and an empty text differ.
    #[test]
    fn rows_as_csv() {
        let rows: [&[SqlValue<'_>]; 2] = [
            &[text("a,\"b\"\n"), SqlValue::Null, text("")],
            &[text(" plain "), SqlValue::Integer(1), SqlValue::Blob(b"\xfe")],
        ];
        let csv = "\"x,y\",n,e\n\"a,\"\"b\"\"\n\",,\"\"\n plain ,1,x'fe'\n";
        assert_eq!(written(Format::Csv, &["x,y", "n", "e"], &rows), csv);
    }

    /// JSON is a list of objects with the columns in their order, also without rows.
    #[test]
    fn rows_as_json() {
        let row = [text("ä"), SqlValue::Blob(b"\xff"), SqlValue::Null, SqlValue::Real(0.5)];
        let json = written(Format::Json, &["z", "b", "n", "r"], &[&row, &row]);
        let parsed: Value = serde_json::from_str(&json).unwrap();
        let one = serde_json::json!({ "z": "ä", "b": [255], "n": null, "r": 0.5 });
        assert_eq!(parsed, serde_json::json!([one, one]));
        assert_eq!(written(Format::Json, &["z"], &[]), "[]\n");
        let mut output = Output::new(Vec::new(), Format::Json);
        assert!(output.columns(&["a", "a"]).is_err());
    }

    /// A table is written before all rows are there, if there are many.
    #[test]
    fn tables_of_many_rows() {
        let mut out = Vec::new();
        let mut output = Output::new(&mut out, Format::Table);
        output.columns(&["n"]).unwrap();
        (0..1000).for_each(|number| output.row(&[SqlValue::Integer(number)]).unwrap());
        assert!(output.sample.is_none());
        output.end().unwrap();
        assert_eq!(String::from_utf8(out).unwrap().lines().count(), 1001);
    }
}
