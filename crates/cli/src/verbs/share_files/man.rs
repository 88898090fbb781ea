//! Manual pages: kestrel(1), a page for each command, and mount.kestrel(8).

use clap::{Arg, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use crate::mount_helper::flags_of_mount;

/// Names of the pages of the helpers of mount(8) and umount(8); the first one has the text.
const HELPER_PAGES: [&str; 3] = ["mount.kestrel", "mount.fuse.kestrel", "umount.fuse.kestrel"];

/// Options of mount(8) that say something about a KestrelFS mount, and what.
const OPTIONS: [(&str, &str); 8] = [
    ("ro, rw", "Read-only or not. The same as --read-only."),
    (
        "nosuid, nodev, suid, dev",
        "Set-user-ID bits and device nodes have no effect, or have; by default they have, as with \
         every file system that mount(8) mounts.",
    ),
    ("noexec, exec", "Programs can be run or not."),
    ("allow_other", "Users other than the one that mounts may use it."),
    (
        "atime=none, atime=relatime, atime=strict",
        "Which reads change access times; noatime, relatime and strictatime mean the same.",
    ),
    ("nodiratime, diratime", "Listing a directory leaves its access time alone or not."),
    ("remount", "Changes options of the mount that is there; what is not named stays."),
    (
        "_netdev",
        "For /etc/fstab: it is mounted when the network is up, and unmounted before that goes.",
    ),
];

/// Lines of /etc/fstab, and commands.
const EXAMPLES: &str = "\
kestrel://meta1/photos  /mnt/photos  kestrel  _netdev,nofail,wait=5m,token-file=/etc/t  0  0
s3://bucket/photos?region=eu-1  /mnt/photos  kestrel  _netdev,nofail,cache-dir=/ssd/cache  0  0
/srv/photos  /mnt/photos  kestrel  nofail,allow_other  0  0
/srv/photos@monday  /mnt/monday  kestrel  ro,noauto  0  0

mount -t kestrel kestrel://meta1/photos /mnt/photos -o allow_other,token-file=/etc/t
mount -o remount,ro /mnt/photos
umount /mnt/photos";

/// All pages: file name and text.
pub fn pages() -> Vec<(String, String)> {
    let mut kestrel = super::command();
    kestrel.build();
    let mut pages = Vec::new();
    add(&kestrel, "kestrel", None, &mut pages);
    let [page, links @ ..] = HELPER_PAGES;
    pages.push((format!("{page}.8"), helper(&kestrel)));
    pages.extend(links.map(|name| (format!("{name}.8"), format!(".so man8/{page}.8\n"))));
    pages
}

fn source() -> String {
    format!("KestrelFS {}", env!("CARGO_PKG_VERSION"))
}

/// The page of a command with the words `name`, and those of the commands below it.
fn add(command: &Command, name: &str, above: Option<&str>, pages: &mut Vec<(String, String)>) {
    let page_name = name.replace(' ', "-");
    let mut related: Vec<String> = above.iter().map(|above| above.replace(' ', "-")).collect();
    if name == "kestrel mount" {
        related.push(HELPER_PAGES[0].into());
    }
    pages.push((format!("{page_name}.1"), page(command, &page_name, &related)));
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        add(below, &format!("{name} {}", below.get_name()), Some(name), pages);
    }
}

/// One page. clap's generator writes the parts that it knows; the help's examples are a section of
/// their own, as people look for them there.
fn page(command: &Command, name: &str, related: &[String]) -> String {
    let man = Man::new(command.clone()).title(name).source(source()).manual("KestrelFS");
    let mut text = Vec::new();
    let rendered = man
        .render_title(&mut text)
        .and_then(|()| man.render_name_section(&mut text))
        .and_then(|()| man.render_synopsis_section(&mut text))
        .and_then(|()| man.render_description_section(&mut text))
        .and_then(|()| man.render_options_section(&mut text))
        .and_then(|()| match command.has_subcommands() {
            true => man.render_subcommands_section(&mut text),
            false => Ok(()),
        });
    debug_assert!(rendered.is_ok(), "writing into memory does not fail");
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (examples, notes) = parts(&after);
    let mut end = Roff::new();
    section(&mut end, "EXAMPLES", examples, true);
    section(&mut end, "NOTES", notes, false);
    see_also(&mut end, related);
    String::from_utf8_lossy(&text).into_owned() + &end.to_roff()
}

/// The examples at the beginning of a help's end, and the rest.
fn parts(after: &str) -> (&str, &str) {
    let Some(rest) = ["Examples:\n", "Example:\n"].iter().find_map(|head| after.strip_prefix(head))
    else {
        return ("", after);
    };
    rest.split_once("\n\n").unwrap_or((rest, ""))
}

/// A section with a text; `as_is`: line for line, as indented texts are in any case.
fn section(page: &mut Roff, title: &str, text: &str, as_is: bool) {
    if text.is_empty() {
        return;
    }
    page.control("SH", [title]);
    let mut is_filled = true;
    for line in text.lines() {
        let wants_fill = !(as_is || line.starts_with(' '));
        if wants_fill != is_filled {
            page.control(if wants_fill { "fi" } else { "nf" }, []);
            is_filled = wants_fill;
        }
        match line.is_empty() {
            true => page.control("PP", []),
            false => page.text([roman(line.trim_start())]),
        };
    }
    if !is_filled {
        page.control("fi", []);
    }
}

fn see_also(page: &mut Roff, pages: &[String]) {
    if pages.is_empty() {
        return;
    }
    page.control("SH", ["SEE ALSO"]);
    let mut words: Vec<Inline> = Vec::new();
    for name in pages {
        let section = if HELPER_PAGES.contains(&name.as_str()) { 8 } else { 1 };
        let comma = if words.is_empty() { "" } else { ", " };
        words.extend([roman(comma), bold(name.as_str()), roman(format!("({section})"))]);
    }
    page.text(words);
}

/// mount.kestrel(8).
fn helper(kestrel: &Command) -> String {
    let name = HELPER_PAGES[0];
    let mut page = Roff::new();
    page.control("TH", [name, "8", "", &source(), "KestrelFS"]);
    page.control("SH", ["NAME"]);
    page.text([roman(format!("{name} - mount a KestrelFS volume by mount(8) and /etc/fstab"))]);
    page.control("SH", ["SYNOPSIS"]);
    page.text([
        bold("mount -t kestrel "),
        italic("VOLUME DIR"),
        roman(" ["),
        bold("-o "),
        italic("OPTION"),
        roman("[,"),
        italic("OPTION"),
        roman("]...]"),
    ]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "mount(8) runs this program for the type kestrel. It does what kestrel-mount(1) does, and \
         returns when the mount serves; the process that serves it stays in the background. \
         VOLUME is a path, file:///path, s3://BUCKET/PREFIX or kestrel://host[:port]/NAME, with \
         @SNAPSHOT, :/DIR@SNAPSHOT or //VERSION behind it for what is read-only.",
    )]);
    page.control("PP", []);
    page.text([roman(
        "A mount is shown with the type fuse.kestrel. Lines of /etc/fstab with that type work as \
         well. umount(8) of it runs umount.fuse.kestrel, which returns when everything is stored, \
         and refuses while the server of the volume does not answer; umount -f gives up what is \
         not stored, umount -l takes the mount out of the tree at once.",
    )]);
    page.control("SH", ["OPTIONS"]);
    page.text([roman(
        "The flags of kestrel-mount(1) without their dashes. A value cannot have a comma.",
    )]);
    for flag in flags_of_mount(kestrel) {
        option(&mut page, flag);
    }
    page.control("PP", []);
    page.text([roman("Of the options that mount(8) has for all file systems:")]);
    for (words, meaning) in OPTIONS {
        page.control("TP", []);
        page.text([bold(words)]);
        page.text([roman(meaning)]);
    }
    section(&mut page, "EXAMPLES", EXAMPLES, true);
    see_also(&mut page, &["kestrel".into(), "kestrel-mount".into(), "kestrel-umount".into()]);
    page.to_roff()
}

/// A flag as an option of mount(8).
fn option(page: &mut Roff, flag: &Arg) {
    let mut words = vec![bold(flag.get_long().unwrap_or_default())];
    if flag.get_action().takes_values() {
        let values = flag.get_value_names().unwrap_or_default();
        let values: Vec<&str> = values.iter().map(|value| value.as_str()).collect();
        words.extend([roman("="), italic(values.join(" "))]);
    }
    page.control("TP", []);
    page.text(words);
    page.text([roman(flag.get_help().map(ToString::to_string).unwrap_or_default())]);
}
