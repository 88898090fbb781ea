//! Where a node may be reached.

/// Addresses, tried in turn.
pub(super) struct Route {
    /// Never empty.
    addresses: Vec<String>,
    /// The one of the present connection or the next attempt.
    at: usize,
    /// Counts how often the node has moved.
    moves: u64,
}

impl Route {
    /// The first of `addresses`, which are not none, is tried first.
    pub fn new(addresses: Vec<String>) -> Self {
        debug_assert!(!addresses.is_empty(), "Remote::connect refuses to have none");
        Self { addresses, at: 0, moves: 0 }
    }

    /// All of them, and which one is next.
    pub fn plan(&self) -> (Vec<String>, usize) {
        (self.addresses.clone(), self.at)
    }

    /// The one of the present connection or the next attempt.
    pub fn present(&self) -> &str {
        &self.addresses[self.at]
    }

    /// How often the node has moved so far.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// Gives up all of them for this one. Whether it is another one than that of the present
    /// connection or the next attempt.
    pub fn redirect(&mut self, address: &str) -> bool {
        let is_other = self.present() != address;
        if is_other {
            (self.addresses, self.at) = (vec![address.to_string()], 0);
        }
        self.moves += 1;
        is_other
    }

    /// This one answers. (If it was given up meanwhile, this connection is the last there.)
    pub fn turn_to(&mut self, address: &str) {
        self.at = self.addresses.iter().position(|have| have == address).unwrap_or(self.at);
    }

    /// The next one is tried.
    pub fn turn(&mut self) {
        self.at = (self.at + 1) % self.addresses.len();
    }

    /// Gives up all but the present one, and adds another.
    pub fn settle(&mut self, other: &str) {
        let present = self.present().to_string();
        let other = (other != present).then(|| other.to_string());
        self.addresses = std::iter::once(present).chain(other).collect();
        self.at = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_answers_is_kept_and_the_rest_given_up() {
        let mut route = Route::new(["a:1", "b:2", "c:3"].map(String::from).to_vec());
        route.turn();
        assert_eq!(route.present(), "b:2");
        route.turn_to("c:3");
        route.turn();
        assert_eq!(route.plan().1, 0);
        route.turn_to("b:2");
        route.settle("node-2:9440");
        assert_eq!(route.plan(), (vec!["b:2".into(), "node-2:9440".into()], 0));
        route.turn_to("a:1");
        route.settle("b:2");
        assert_eq!(route.plan(), (vec!["b:2".into()], 0));
        assert!(!route.redirect("b:2") && route.redirect("d:4"));
        assert_eq!((route.plan(), route.moves()), ((vec!["d:4".into()], 0), 2));
        // Of a connection that was made before.
        route.turn_to("b:2");
        assert_eq!(route.present(), "d:4");
    }
}
