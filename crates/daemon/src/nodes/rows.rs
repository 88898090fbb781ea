//! The rows of one node, fetched page by page.

use kestrel_admin::rows::Row;
use kestrel_types::hex::{from_hex, to_hex};
use kestrel_types::key::{Key, KeyRef, Table};
use kestrel_types::placement::NodeId;
use serde_json::{Value, json};

use super::QueryNodes;

/// Rows of a node in the order of their keys.
pub struct Pages<'a> {
    nodes: &'a dyn QueryNodes,
    node: NodeId,
    tables: std::slice::Iter<'a, Table>,
    /// The table that is read and where the next page begins.
    at: Option<(Table, Value)>,
    id: Option<u64>,
    max: Option<u64>,
    page: std::vec::IntoIter<Row>,
}

impl<'a> Pages<'a> {
    /// All rows of a node, table by table.
    pub fn all(nodes: &'a dyn QueryNodes, node: NodeId) -> Self {
        Self {
            nodes,
            node,
            tables: Table::ALL.iter(),
            at: None,
            id: None,
            max: None,
            page: Vec::new().into_iter(),
        }
    }

    /// Those of one table from a key on; of one id only if it is given.
    pub fn of(
        nodes: &'a dyn QueryNodes,
        node: NodeId,
        table: Table,
        from: Option<&Key>,
        id: Option<u64>,
    ) -> Self {
        let from = from.map_or(Value::Null, |key| digits(key).into());
        Self { tables: [].iter(), at: Some((table, from)), id, ..Self::all(nodes, node) }
    }

    /// The first row of a table from a key on.
    pub fn one(nodes: &'a dyn QueryNodes, node: NodeId, key: &Key) -> Self {
        Self { max: Some(1), ..Self::of(nodes, node, key.table, Some(key), Some(key.id)) }
    }

    /// Fetches the next page; false at the end.
    fn fetch(&mut self) -> Result<bool, String> {
        let Some((table, from)) =
            self.at.take().or_else(|| self.tables.next().map(|table| (*table, Value::Null)))
        else {
            return Ok(false);
        };
        let question = json!({ "verb": "rows", "table": table as u8, "from": from, "id": self.id,
                "max": self.max });
        let answer = self.nodes.ask(self.node, &question)?;
        let rows = answer["rows"].as_array().map_or(&[][..], Vec::as_slice);
        let mut page =
            rows.iter().map(|row| self.row(row)).collect::<Result<Vec<Row>, String>>()?;
        if answer["left"].as_u64().unwrap_or(0) > 0
            && let Some((key, value)) = page.pop()
        {
            page.extend(self.rest(key, value)?);
        }
        self.page = page.into_iter();
        let next = answer["next"].clone();
        self.at = next.is_string().then_some((table, next));
        Ok(true)
    }

    /// A row with a value that came in part; none if it is gone meanwhile.
    fn rest(&self, key: Key, value: Box<[u8]>) -> Result<Option<Row>, String> {
        let mut value = value.into_vec();
        loop {
            let question = json!({
                "verb": "rows", "table": key.table as u8, "from": digits(&key), "skip": value.len(),
                "max": 1,
            });
            let answer = self.nodes.ask(self.node, &question)?;
            let Some((found, piece)) =
                answer["rows"].get(0).map(|row| self.row(row)).transpose()?
            else {
                return Ok(None);
            };
            if found != key {
                return Ok(None);
            }
            value.extend_from_slice(&piece);
            if answer["left"] == 0 || piece.is_empty() {
                return Ok(Some((key, value.into())));
            }
        }
    }

    fn row(&self, row: &Value) -> Result<Row, String> {
        let bytes = |at: usize| row[at].as_str().and_then(from_hex);
        let key = bytes(0).and_then(|key| KeyRef::decode(&key).map(KeyRef::to_owned));
        let row = key.zip(bytes(1)).map(|(key, value)| (key, value.into()));
        row.ok_or_else(|| {
            format!("node {} gave no valid row; use the same version of kestrel", self.node)
        })
    }
}

fn digits(key: &Key) -> String {
    let mut bytes = Vec::new();
    key.borrow().encode_into(&mut bytes);
    to_hex(&bytes)
}

impl Iterator for Pages<'_> {
    type Item = Result<Row, String>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.page.next() {
                return Some(Ok(row));
            }
            match self.fetch() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(why) => return Some(Err(why)),
            }
        }
    }
}
