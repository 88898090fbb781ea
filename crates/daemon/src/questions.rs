//! Questions of clients to a process that serves a volume over the network.

use std::sync::{Arc, Weak};

use kestrel_server::admin::{Admin, AdminRequester};
use kestrel_types::error::FsError;
use parking_lot::Mutex;
use serde_json::Value;

use super::serving::Serving;

/// Questions being answered at a time; each has a thread.
const QUESTIONS_MAX: usize = 32;

/// Longest question for the addresses of nodes that is answered at once, bytes.
const ADDRESSES_BYTES_MAX: usize = 1024;

/// Characters of a question's verb in the log.
const VERB_SHOWN: usize = 32;

/// Answers questions of clients, each on a thread of its own.
#[derive(Default)]
pub struct Questions {
    serving: Mutex<Weak<Serving>>,
    answering: Arc<()>,
}

impl Questions {
    /// What answers the questions.
    pub fn belong_to(&self, serving: &Arc<Serving>) {
        *self.serving.lock() = Arc::downgrade(serving);
    }
}

impl Admin for Questions {
    fn submit(&self, question: Box<[u8]>, asker: AdminRequester) {
        let refuse = |asker: AdminRequester, errno, why: String| {
            asker.answer(Err(FsError::because(errno, why)))
        };
        let Some(serving) = self.serving.lock().upgrade() else {
            return refuse(
                asker,
                libc::EAGAIN,
                "the server is starting or ending; ask again".into(),
            );
        };
        // Every client that has lost a node asks this, several times a second: it needs no thread,
        // and no room among the others.
        if question.len() <= ADDRESSES_BYTES_MAX
            && let Ok(asked) = serde_json::from_slice::<Value>(&question)
            && asked["verb"] == "whereabouts"
            && let (Some(host), None) = (serving.volume.fs.member(), asker.ended())
        {
            let answer = super::map::addresses(host, &asked).to_string();
            return asker.answer(Ok(answer.into_bytes().into()));
        }
        // Each thread holds one reference, and so does this.
        if Arc::strong_count(&self.answering) > QUESTIONS_MAX {
            return refuse(
                asker,
                libc::EBUSY,
                format!("{QUESTIONS_MAX} questions are being answered; ask later"),
            );
        }
        let counted = self.answering.clone();
        // Where the asker is while there is no thread yet, so that it gets an answer if there will
        // be none.
        let held = Arc::new(Mutex::new(Some(asker)));
        let ours = held.clone();
        let work = move || {
            let _counted = counted;
            let Some(asker) = ours.lock().take() else { return };
            let answer = answer(&serving, &question, &asker);
            asker.answer(answer.map_err(|why| FsError::because(libc::EIO, why)));
        };
        if let Err(why) = std::thread::Builder::new().name("kestrel-answer".into()).spawn(work)
            && let Some(asker) = held.lock().take()
        {
            refuse(asker, libc::EAGAIN, format!("no thread to answer with: {why}"));
        }
    }
}

fn answer(serving: &Serving, question: &[u8], asker: &AdminRequester) -> Result<Box<[u8]>, String> {
    let question: Value = serde_json::from_slice(question)
        .map_err(|error| format!("the question is not valid JSON: {error}"))?;
    let verb = question["verb"].as_str().unwrap_or("?");
    // These are asked for page by page, or by every client.
    let quiet =
        matches!(verb, "rows" | "sums" | "cut" | "table" | "whereabouts" | "alive" | "unheard");
    let level = if quiet { log::Level::Debug } else { log::Level::Info };
    let shown: String = verb.chars().take(VERB_SHOWN).collect();
    log::log!(level, "{} asks: {shown:?}", asker.who());
    let mut tell = |event: &Value| asker.event(event.to_string().as_bytes());
    if let Err(why) = may_ask(verb, &question, asker) {
        serving.audit_refused(verb, &why, asker);
        return Err(why);
    }
    let answer = serving.answer_afar(&question, &mut tell);
    serving.audit(
        &question,
        &answer,
        (&asker.who(), asker.from(), asker.token().map(|token| token.id)),
    );
    Ok(answer?.to_string().into_bytes().into())
}

/// Whether the asker may: with a token if that may administer, but for what every client has to
/// know; without one what does not make tokens, since every user of this machine is let in without.
fn may_ask(verb: &str, question: &Value, asker: &AdminRequester) -> Result<(), String> {
    if let Some(why) = asker.ended() {
        return Err(why.reason.to_string());
    }
    match asker.token() {
        Some(token) if !token.admin && !matches!(verb, "table" | "whereabouts" | "alive") => {
            // People know nothing of the steps that a verb consists of.
            let what = if matches!(verb, "rows" | "cut" | "sums" | "coding" | "settings") {
                String::new()
            } else {
                format!("{verb}: ")
            };
            Err(format!("{what}token {} ({}) may not administer the volume", token.id, token.name))
        }
        None if verb == "settings" && question.get("after").is_some() => Err(
            "settings and keys are changed where the volume's directory is: name that, or show \
                 a token that may administer"
                .into(),
        ),
        None if verb == "backup" && question["act"] == "prune" => {
            // They are what is left when somebody has deleted all else.
            Err("dumps are removed where the volume's directory is: name that, or show a token \
                 that may administer"
                .into())
        }
        None if verb == "yield" => {
            Err("a process that serves ends only for nodes of its cluster; on its machine, use \
                 `kestrel serve --stop`"
                .into())
        }
        None if verb == "token" => {
            Err("tokens are made where the volume's directory is: name that, or show a token that \
                 may \
                                        administer"
                .into())
        }
        _ => Ok(()),
    }
}
