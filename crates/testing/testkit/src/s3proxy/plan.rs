//! Which request is hit by what: a function of seed, rule, the request's target and how often that
//! target was asked for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::kind::Kind;
use super::rule::{Fault, Rule};
use crate::rng::{Rng, mix};

/// Targets with repetitions that are told apart. Beyond, the count begins anew.
const TARGETS_MAX: usize = 1 << 20;

/// What happens to one request.
#[derive(Clone, Debug, Default)]
pub struct Disturbance {
    /// Wait before it goes to the store, milliseconds.
    pub delay_ms: u64,
    /// The fault that hits it.
    pub fault: Option<Fault>,
    /// Names of all that hit it, for the counts.
    pub names: Vec<&'static str>,
    /// Random numbers of its own: where to cut, which bytes to change.
    pub draw: u64,
    /// Changes with every change of rules: a hanging request looks whether it is still this.
    pub generation: u64,
}

struct Armed {
    rule: Rule,
    /// Requests that it would have hit.
    met: AtomicU64,
}

/// The rules in force.
pub struct FaultPlan {
    seed: u64,
    rules: RwLock<Arc<Vec<Armed>>>,
    generation: AtomicU64,
    repetitions: Mutex<HashMap<u64, u64>>,
}

impl FaultPlan {
    /// A plan without rules.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            rules: RwLock::default(),
            generation: AtomicU64::new(0),
            repetitions: Mutex::default(),
        }
    }

    /// Puts other rules in force. Requests that hang are let go. Their repetitions are counted
    /// anew.
    pub fn set(&self, rules: Vec<Rule>) {
        let armed = rules.into_iter().map(|rule| Armed { rule, met: AtomicU64::new(0) }).collect();
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(armed);
        self.repetitions.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.generation.fetch_add(1, Relaxed);
    }

    /// The rules, as they were written.
    pub fn texts(&self) -> Vec<String> {
        self.armed().iter().map(|armed| armed.rule.text.clone()).collect()
    }

    /// The limits on bodies, bytes a second to and from the store; 0 is none.
    pub fn bandwidth(&self) -> (u64, u64) {
        let armed = self.armed();
        let found = armed.iter().filter_map(|armed| match armed.rule.fault {
            Fault::Bandwidth { up, down } => Some((up, down)),
            _ => None,
        });
        found.last().unwrap_or((0, 0))
    }

    /// Whether a rule wants pages of listings to be held.
    pub fn holds_listings(&self) -> bool {
        let lists =
            |fault: &Fault| matches!(fault, Fault::ListCut | Fault::ListGap | Fault::ListRepeat);
        self.armed().iter().any(|armed| lists(&armed.rule.fault))
    }

    /// The generation of the rules in force.
    pub fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// Decides about a request.
    pub fn disturb(&self, kind: Kind, target: &str) -> Disturbance {
        let armed = self.armed();
        let mut disturbance =
            Disturbance { generation: self.generation(), ..Disturbance::default() };
        if armed.is_empty() {
            return disturbance;
        }
        let name = hash(target, mix(kind as u64));
        let turn = self.turn(name);
        for (index, Armed { rule, met }) in armed.iter().enumerate() {
            let mut random = Rng::new(mix(self.seed) ^ mix(name ^ index as u64) ^ mix(turn));
            let hit = rule.kinds.contains(&kind)
                && target.contains(&rule.contains)
                && random.below(1_000_000) < rule.rate_ppm
                && (rule.fault.adds_up() || disturbance.fault.is_none());
            if !hit {
                continue;
            }
            let before = met.fetch_add(1, Relaxed);
            if before < rule.skip || before - rule.skip >= rule.count {
                continue;
            }
            match &rule.fault {
                Fault::Bandwidth { .. } => continue,
                Fault::Latency { ms, jitter_ms } => {
                    disturbance.delay_ms += ms + random.below(jitter_ms + 1)
                }
                fault => {
                    disturbance.fault = Some(fault.clone());
                    disturbance.draw = random.next_u64();
                }
            }
            disturbance.names.push(rule.fault.name());
        }
        disturbance
    }

    fn armed(&self) -> Arc<Vec<Armed>> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often this target was asked for before.
    fn turn(&self, name: u64) -> u64 {
        let mut repetitions = self.repetitions.lock().unwrap_or_else(PoisonError::into_inner);
        if repetitions.len() >= TARGETS_MAX {
            repetitions.clear();
        }
        let count = repetitions.entry(name).or_insert(0);
        *count += 1;
        *count
    }
}

/// FNV-1a: only has to be the same everywhere.
fn hash(text: &str, basis: u64) -> u64 {
    text.bytes().fold(basis ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(seed: u64, rules: &str) -> FaultPlan {
        let plan = FaultPlan::new(seed);
        plan.set(Rule::parse_all(rules).unwrap());
        plan
    }

    /// Which of `targets` are hit, asked for in this order.
    fn hits(plan: &FaultPlan, targets: impl Iterator<Item = u64>) -> Vec<(u64, bool)> {
        let mut hit: Vec<_> = targets
            .map(|n| (n, plan.disturb(Kind::Get, &format!("/b/{n}")).fault.is_some()))
            .collect();
        hit.sort_unstable();
        hit
    }

    #[test]
    fn the_order_of_requests_does_not_matter() {
        let forward = hits(&plan(7, "reset:rate=0.3"), 0..1000);
        assert_eq!(forward, hits(&plan(7, "reset:rate=0.3"), (0..1000).rev()));
        assert_ne!(forward, hits(&plan(8, "reset:rate=0.3"), 0..1000));
        let count = forward.iter().filter(|(_, hit)| *hit).count();
        assert!((200..400).contains(&count), "{count} of 1000 at a rate of 0.3");
    }

    #[test]
    fn a_repetition_draws_anew() {
        let plan = plan(1, "reset:rate=0.5");
        let tries: Vec<_> =
            (0..32).map(|_| plan.disturb(Kind::Put, "/b/k").fault.is_some()).collect();
        assert!(tries.contains(&true) && tries.contains(&false));
    }

    #[test]
    fn skip_count_kind_and_match() {
        let plan = plan(1, "status:code=500,kind=list,skip=1,count=2 latency:ms=5 reset:match=/k2");
        let status = |disturbance: Disturbance| disturbance.fault.map(|fault| fault.name());
        let lists: Vec<_> =
            (0..4).map(|_| status(plan.disturb(Kind::List, "/b?list-type=2"))).collect();
        assert_eq!(lists, [None, Some("status"), Some("status"), None]);
        assert_eq!(status(plan.disturb(Kind::Get, "/b/k1")), None);
        let hit = plan.disturb(Kind::Get, "/b/k2");
        assert_eq!((hit.delay_ms, hit.names.as_slice()), (5, &["latency", "reset"][..]));
        assert_eq!(plan.bandwidth(), (0, 0));
        plan.set(Rule::parse_all("bandwidth:up=10,down=20").unwrap());
        assert_eq!((plan.bandwidth(), plan.generation()), ((10, 20), 2));
    }
}
