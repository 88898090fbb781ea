//! `kestrel token`.

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use kestrel_client::control::QUICK;
use kestrel_client::descriptor::Descriptor;
use kestrel_client::volume::{Resources, Volume};
use kestrel_daemon::failure::{ExitStatus, Failure};
use kestrel_daemon::tokens;
use kestrel_daemon::units::duration_arg;
use kestrel_rpc::token::Token;
use kestrel_types::clock::{Clock, Nanos, SystemClock};
use serde_json::{Value, json};

use super::{Target, print_json};

/// User and group that root stands for unless others are given.
const NOBODY: &str = "65534:65534";

/// Make, list and revoke tokens, which say what a client may do with a served volume.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "Examples:
  (umask 077; kestrel token create /data/vol --name trainer --uid 1000-1999 >token)
  kestrel token create /data/node1 --name viewer --read-only --subtree /sets/public --expires 30d
  kestrel mount kestrel://10.0.0.1/photos /mnt --token-file token
  kestrel token list /data/vol
  kestrel token revoke /data/vol trainer

Clients that are not on the server's machine show a token (`kestrel serve --access`).
docs/operations/security.md, \"Tokens\", tells what one allows.")]
pub struct TokenArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Create(Box<CreateArgs>),
    List(ListArgs),
    Export(ExportArgs),
    Show(OneArgs),
    Revoke(OneArgs),
    Prune(ListArgs),
    S3(S3Args),
}

/// Make a token, or a certificate, and print it, this once: the volume keeps only what it is
/// verified by.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  (umask 077; kestrel token create /data/vol --name trainer --uid 1000-1999 --gid 1000-1999 >token)
  kestrel token create kestrel://10.0.0.1/photos --name backup --read-only --expires 90d \
      --token-file admin-token
  kestrel token create /data/vol --name tenant --subtree /tenants/7 --squash-root --map-uid 500:1500
  (umask 077; kestrel token create /data/vol --name gpu17 --certificate >gpu17.pem)
  kestrel mount 'kestrel://10.0.0.1/photos?ca=sha256:…&cert=/root/gpu17.pem' /mnt")]
struct CreateArgs {
    /// The volume: a path, file:///path, s3://… or kestrel://host[:port]/NAME with a token that may
    /// administer
    volume: String,
    /// For people: 1 to 64 bytes
    #[arg(long, value_name = "NAME")]
    name: String,
    /// When it ends, from now on; never by default
    #[arg(long, value_name = "TIME", value_parser = duration_arg)]
    expires: Option<Duration>,
    /// Nothing may be changed
    #[arg(long)]
    read_only: bool,
    /// The only directory there is, as the root: its path from the volume's root
    #[arg(long, value_name = "PATH")]
    subtree: Option<String>,
    /// Users that may be claimed: numbers and ranges, as 0,1000-1999; all by default
    #[arg(long, value_name = "UIDS", value_parser = ranges_arg)]
    uid: Option<Ranges>,
    /// Groups that may be claimed; all by default
    #[arg(long, value_name = "GIDS", value_parser = ranges_arg)]
    gid: Option<Ranges>,
    /// What root stands for, before that is looked at; 65534:65534 if nothing is given
    #[arg(long, value_name = "UID:GID", num_args = 0..=1, default_missing_value = NOBODY,
        value_parser = pair_arg)]
    squash_root: Option<(u32, u32)>,
    /// A user that stands for another one, likewise; may be repeated
    #[arg(long, value_name = "CLAIMED:MEANT", value_parser = pair_arg)]
    map_uid: Vec<(u32, u32)>,
    /// The volume may be administered, tokens included
    #[arg(long, conflicts_with_all = ["read_only", "subtree"])]
    admin: bool,
    /// Print a certificate with its key instead, which clients show with ?cert=FILE; on a machine
    /// of the volume
    #[arg(long)]
    certificate: bool,
    /// Print JSON, the token among it
    #[arg(long)]
    json: bool,
}

/// List tokens; or forget those that have been revoked or have expired.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel token list /data/vol --json
  kestrel token prune /data/vol")]
struct ListArgs {
    /// The volume: a path, file:///path, s3://… or kestrel://host[:port]/NAME with a token that may
    /// administer
    volume: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Print the records of tokens, for servers of published versions: no token can be made from them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel token export /data/vol >tokens.json
  kestrel serve /data/vol//imagenet@v3 --read-only --listen 10.0.0.7:9450 --tokens tokens.json")]
struct ExportArgs {
    /// The volume: a path, file:///path, s3://… or kestrel://host[:port]/NAME with a token that may
    /// administer
    volume: String,
}

/// Show a token, or revoke it: within two seconds nobody can use it any more.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel token show /data/vol trainer
  kestrel token revoke /data/vol 9f86d081884c7d65")]
struct OneArgs {
    /// The volume: a path, file:///path, s3://… or kestrel://host[:port]/NAME with a token that may
    /// administer
    volume: String,
    /// The token's name or number
    token: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Print the access key of S3 that a token is, and its secret, for clients of `kestrel gateway`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kestrel token s3 --token-file trainer.token
  kestrel token s3 --token-file trainer.token --json

The gateway has the token itself, in the file of its --tokens. Neither the token nor another secret
can be made from what this prints.")]
struct S3Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Users or groups, both ends of each range included.
type Ranges = Arc<[(u32, u32)]>;

fn ranges_arg(text: &str) -> Result<Ranges, String> {
    let number =
        |text: &str| text.parse::<u32>().map_err(|_| format!("{text:?} is no number of a user"));
    let range = |text: &str| match text.split_once('-') {
        None => number(text).map(|id| (id, id)),
        Some((first, last)) => match (number(first)?, number(last)?) {
            (first, last) if first <= last => Ok((first, last)),
            _ => Err(format!("{text:?} ends before it begins")),
        },
    };
    text.split(',').map(range).collect()
}

fn pair_arg(text: &str) -> Result<(u32, u32), String> {
    let pair =
        text.split_once(':').and_then(|(one, two)| Some((one.parse().ok()?, two.parse().ok()?)));
    pair.ok_or("two numbers with a colon between them".into())
}

fn fail(why: impl std::fmt::Display) -> Failure {
    Failure::new("token", why)
}

/// Does it.
pub fn run(args: &TokenArgs) -> Result<ExitStatus, Failure> {
    match &args.action {
        Action::Create(args) => create(args),
        Action::List(args) => list(args),
        Action::Export(args) => {
            print_json(&ask(&args.volume, json!({ "action": "export" }))?);
            Ok(ExitStatus::Good)
        }
        Action::Show(args) => one("show", args),
        Action::Revoke(args) => one("revoke", args),
        Action::Prune(args) => prune(args),
        Action::S3(args) => s3(args),
    }
}

/// The access key of the token that this process has.
fn s3(args: &S3Args) -> Result<ExitStatus, Failure> {
    let token = kestrel_client::remote::token().map_err(fail)?;
    let token = token.ok_or_else(|| Failure::usage("token: s3: name the token by --token-file"))?;
    let (id, secret) = (token.s3_access_key(), token.s3_secret());
    match args.json {
        true => print_json(&json!({ "access_key": id, "secret": secret })),
        false => println!("access key {id}\nsecret     {secret}"),
    }
    Ok(ExitStatus::Good)
}

/// Asks the process that has the volume open, or opens it.
fn ask(volume: &str, mut question: Value) -> Result<Value, Failure> {
    question["verb"] = "token".into();
    let target = Target::of("token", volume, None)?;
    if let Some(answer) = target.ask("token", &question, QUICK, &mut |_| ())? {
        return Ok(answer);
    }
    let Target::Here(dir) = target else { return Err(fail("nobody answers")) };
    if Descriptor::read(&dir).map_err(fail)?.cluster.is_some() {
        return Err(fail(format!(
            "{}: one node of a volume that several share, and it does not run: start it, or name \
             one that does",
            dir.display()
        )));
    }
    let opened = Volume::open(volume, "kestrel token", &Resources::default()).map_err(fail)?;
    tokens::answer_at_rest(opened.engine.clone(), &dir, &question).map_err(fail)
}

fn create(args: &CreateArgs) -> Result<ExitStatus, Failure> {
    let expires = args.expires.map(|time| {
        let time = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        SystemClock.now().saturating_add(time)
    });
    // Only the asker sees its key: it does not travel.
    let authority = match (args.certificate, Target::of("token", &args.volume, None)?) {
        (false, _) => None,
        (true, Target::Here(dir)) => Some(Descriptor::authority_at(&dir).map_err(fail)?),
        (true, Target::Served(_)) => {
            return Err(fail(
                "a certificate is made on a machine of the volume: run this there, and name the \
                 directory",
            ));
        }
    };
    let mut made = Token::new(None).map_err(fail)?;
    let question = json!({
        "action": "create",
        "id": made.id.to_string(),
        "verifier": made.verifier(),
        "name": args.name,
        "expires": expires,
        "read_only": args.read_only,
        "admin": args.admin,
        "subtree": args.subtree,
        "uids": args.uid.as_deref(),
        "gids": args.gid.as_deref(),
        "squash": args.squash_root.map(|pair| [pair]),
        "map": args.map_uid,
    });
    let mut answer = ask(&args.volume, question)?;
    made.authority = answer["authority"].as_str().map(str::to_string);
    if let Some(authority) = authority {
        // As long as the token, which has a secret that nobody has: revoking it ends the
        // certificate.
        let (now, until) = (SystemClock.now(), expires.unwrap_or(Nanos::MAX));
        let certificate = authority.issue(&made.id.to_string(), now, until).map_err(fail)?;
        if args.json {
            answer["certificate"] = certificate.as_str().into();
            print_json(&answer);
        } else {
            print!("{}", *certificate);
            tell_missing(&answer);
        }
    } else if args.json {
        answer["token"] = made.reveal().into();
        print_json(&answer);
    } else {
        println!("{}", made.reveal());
        tell_missing(&answer);
    }
    Ok(ExitStatus::Good)
}

/// Says which nodes do not know yet.
fn tell_missing(answer: &Value) {
    let missing = answer["not_confirmed_by"].as_array().filter(|nodes| !nodes.is_empty());
    if let Some(nodes) = missing {
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        eprintln!(
            "kestrel token: not heard from node {}: it is told when it is back, before it lets \
             anybody in",
            nodes.join(", ")
        );
    }
}

fn list(args: &ListArgs) -> Result<ExitStatus, Failure> {
    let answer = ask(&args.volume, json!({ "action": "list" }))?;
    if args.json {
        print_json(&answer["tokens"]);
        return Ok(ExitStatus::Good);
    }
    println!("{:<16}  {:<8}  {:<20}  NAME AND WHAT IT ALLOWS", "TOKEN", "STATE", "EXPIRES");
    for token in answer["tokens"].as_array().into_iter().flatten() {
        let text = |name: &str| token[name].as_str().unwrap_or("-").to_string();
        println!(
            "{:<16}  {:<8}  {:<20}  {}{}",
            text("id"),
            text("state"),
            text("expires"),
            text("name"),
            allows(token)
        );
    }
    Ok(ExitStatus::Good)
}

/// What differs from all.
fn allows(token: &Value) -> String {
    let mut out = String::new();
    for (name, text) in [("read_only", "read-only"), ("admin", "admin")] {
        if token[name] == true {
            out.push_str(&format!(", {text}"));
        }
    }
    if let Some(path) = token["subtree"].as_str() {
        out.push_str(&format!(", below {path}"));
    }
    for (name, text) in [("uids", "uids"), ("gids", "gids"), ("squash_root", "root is")] {
        if let Some(ids) = token[name].as_str().filter(|ids| *ids != "all") {
            out.push_str(&format!(", {text} {ids}"));
        }
    }
    for pair in token["map_uid"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        out.push_str(&format!(", uid {pair}"));
    }
    out
}

fn one(action: &str, args: &OneArgs) -> Result<ExitStatus, Failure> {
    let answer = ask(&args.volume, json!({ "action": action, "token": args.token }))?;
    if args.json {
        print_json(&answer);
        return Ok(ExitStatus::Good);
    }
    let text = |name: &str| answer[name].as_str().unwrap_or("-");
    println!("{} ({}): {}{}", text("name"), text("id"), text("state"), allows(&answer));
    println!("issued {}, expires {}, revoked {}", text("issued"), text("expires"), text("revoked"));
    tell_missing(&answer);
    Ok(ExitStatus::Good)
}

fn prune(args: &ListArgs) -> Result<ExitStatus, Failure> {
    let answer = ask(&args.volume, json!({ "action": "prune" }))?;
    if args.json {
        print_json(&answer);
    } else {
        println!("{} tokens forgotten", answer["pruned"]);
        tell_missing(&answer);
    }
    Ok(ExitStatus::Good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_read() {
        assert_eq!(*ranges_arg("0,1000-1999").unwrap(), [(0, 0), (1000, 1999)]);
        for text in ["", "a", "5-", "9-3", "1,,2", "-1"] {
            assert!(ranges_arg(text).is_err(), "{text}");
        }
        assert_eq!(pair_arg("500:1500"), Ok((500, 1500)));
        assert!(pair_arg("500").is_err() && pair_arg("a:b").is_err());
        assert_eq!(duration_arg("30d"), Ok(Duration::from_secs(30 * 86_400)));
        assert_eq!(duration_arg("5s"), Ok(Duration::from_secs(5)));
        assert!(duration_arg("xd").is_err());
    }
}
