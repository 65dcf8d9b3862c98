//! Every parser on one text.

use crate::reference::{self, string};
use pinned_alloc::os::limits::{
    Thp, parse_cgroup, parse_cgroup_value, parse_mountinfo, parse_status, parse_thp,
};
use pinned_alloc::os::procfs::parse_smaps;
use pinned_alloc::os::topology::{NodeSet, parse_distances, parse_mem_total, parse_node_list};
use pinned_alloc_fuzz::Bytes;

pub fn all(mut b: Bytes) {
    let online = NodeSet::from_bits(b.word() as u64);
    let columns = u64::from(b.byte());
    let (start, len) = (b.word(), b.word());
    let text = b.0;
    let s = string(text);
    node_list(text, &s);
    let row = parse_distances(text, online, columns);
    let want = reference::distances(&s, online, columns);
    assert_eq!(row.is_some(), want.is_some(), "{s:?}");
    for (n, &d) in row.iter().flatten().enumerate() {
        let named = want.iter().flatten().find(|w| usize::from(w.0) == n).map_or(0, |w| w.1);
        assert_eq!(d, named, "node {n} of {s:?}");
    }
    for (line, s) in text.split(|&b| b == b'\n').zip(s.split('\n')) {
        assert_eq!(parse_mem_total(line), reference::mem_total(s), "{s:?}");
        cgroup(line, s);
        mount(line, s);
    }
    status(text, &s);
    let value = parse_cgroup_value(text);
    let want = match s.trim_end_matches(|c: char| c.is_ascii_whitespace()) {
        "max" => Some(None),
        _ => reference::number(&s).map(|n| Some(n).filter(|&n| n < (1 << 63) - (1 << 18))),
    };
    assert_eq!(value, want, "{s:?}");
    thp(text, &s);
    smaps(text, start, len);
}

fn node_list(text: &[u8], s: &str) {
    let got = parse_node_list(text);
    assert_eq!(got.map(|l| (l.set, l.ignored)), reference::nodes(s), "{s:?}");
    if let Some(l) = got.filter(|l| !l.set.is_empty()) {
        // The set prints itself in the same format.
        let again = parse_node_list(l.set.to_string().as_bytes()).expect("a list");
        assert_eq!((again.set, again.ignored), (l.set, 0));
        assert_eq!(l.set.iter().collect::<NodeSet>(), l.set);
        assert_eq!((l.set.iter().len(), l.set.iter().next()), (l.set.len(), l.set.first()));
    }
}

fn cgroup(line: &[u8], s: &str) {
    let want = (|| {
        let mut f = s.splitn(3, ':');
        let (id, controllers, path) = (f.next()?, f.next()?, f.next()?);
        let version = match (id, controllers) {
            ("0", "") => 2,
            (_, c) if c.split(',').any(|c| c == "memory") => 1,
            _ => return None,
        };
        path.starts_with('/').then_some((version, path))
    })();
    assert_eq!(
        parse_cgroup(line).map(|(v, p)| (v, string(p))),
        want.map(|(v, p)| (v, p.to_owned())),
        "{s:?}"
    );
}

fn mount(line: &[u8], s: &str) {
    let words: Vec<&str> = s.split(' ').collect();
    // The hyphen stands behind the options, which may be missing in a bad line.
    let want = (|| {
        let (root, point) = (words.get(3)?, words.get(4)?);
        let hyphen = 5 + words.get(5..)?.iter().position(|&w| w == "-")?;
        let (kind, options) = (words.get(hyphen + 1)?, words.get(hyphen + 3)?);
        (root.starts_with('/') && point.starts_with('/')).then_some([root, point, kind, options])
    })();
    let got = parse_mountinfo(line).map(|m| [m.root, m.mount_point, m.fs_type, m.super_options].map(string));
    assert_eq!(got, want.map(|w| w.map(|w| (*w).to_owned())), "{s:?}");
}

fn status(text: &[u8], s: &str) {
    let got = parse_status(text);
    // The last line of a name counts.
    let last = |name: &str| s.split('\n').filter_map(|l| l.strip_prefix(name)).next_back();
    assert_eq!(got.vm_locked, last("VmLck:").and_then(reference::kib), "{s:?}");
    let hex = |t: &str| {
        let t = t.trim_matches(|c: char| c.is_ascii_whitespace());
        let digits = !t.is_empty() && t.chars().all(|c| c.is_ascii_hexdigit());
        digits.then(|| u64::from_str_radix(t, 16).ok()).flatten()
    };
    assert_eq!(got.cap_effective, last("CapEff:").and_then(hex), "{s:?}");
}

fn thp(text: &[u8], s: &str) {
    let word = s.split(|c: char| c.is_ascii_whitespace()).find(|w| w.starts_with('['));
    let want = match word {
        Some("[always]") => Thp::Always,
        Some("[madvise]") => Thp::Madvise,
        Some("[never]") => Thp::Never,
        _ => Thp::Unknown,
    };
    assert_eq!(parse_thp(text), want, "{s:?}");
}

fn smaps(text: &[u8], start: usize, len: usize) {
    for (start, len) in [(start, len), (0, usize::MAX), (start, 0), (0x1000, 0x3000)] {
        let f = parse_smaps(text, start, len);
        assert!(f.locked <= f.rss && f.rss <= f.mapped && f.huge_bytes <= f.mapped, "{f:?}");
        assert!(f.locked <= f.lo_flag_bytes && f.lo_flag_bytes <= f.mapped, "{f:?}");
        assert!((f.vmas == 0) == (f.mapped == 0), "{f:?}");
        assert!(f.vmas > 1 || f.mapped <= len as u64, "{f:?}");
        // Twice the range is never less of anything.
        let more = parse_smaps(text, start, len.saturating_mul(2));
        assert!(more.mapped >= f.mapped && more.lo_flag_bytes >= f.lo_flag_bytes && more.vmas >= f.vmas);
        assert!(more.rss >= f.rss && more.locked >= f.locked && more.huge_bytes >= f.huge_bytes);
    }
}
