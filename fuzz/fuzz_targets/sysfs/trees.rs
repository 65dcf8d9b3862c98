//! Trees of files, invented from the fuzzer's bytes, below `/dev/shm`.

use crate::reference::{self, string};
use pinned_alloc::os::limits::{cgroup_memory_from, hugetlb_pools_in};
use pinned_alloc::os::topology::{MAX_CPUS, Node, NodeSet, Topology};
use pinned_alloc_fuzz::Bytes;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The directory of this process; removed when it ends.
fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    extern "C" fn remove() {
        let _ = std::fs::remove_dir_all(root());
    }
    ROOT.get_or_init(|| {
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let dir = base.join(format!("pinned-alloc-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory for the trees");
        // SAFETY: a handler that may run at any normal end.
        unsafe { libc::atexit(remove) };
        dir
    })
}

/// Files of one run; gone with it. Directories stay, since they cost most.
struct Tree {
    files: BTreeMap<String, Vec<u8>>,
}

impl Tree {
    fn new(files: BTreeMap<String, Vec<u8>>) -> Self {
        for (name, text) in &files {
            let path = root().join(name);
            if std::fs::write(&path, text).is_err() {
                std::fs::create_dir_all(path.parent().expect("below the root")).expect("a directory");
                std::fs::write(&path, text).expect("a file");
            }
        }
        Self { files }
    }

    fn path(name: &str) -> CString {
        CString::new(root().join(name).to_str().expect("ASCII")).expect("no NUL")
    }

    /// The text of a file, as a string.
    fn text(&self, name: &str) -> Option<String> {
        self.files.get(name).map(|t| string(t))
    }

    /// A file that holds a number.
    fn number(&self, name: &str) -> Option<u64> {
        let text = self.text(name)?;
        reference::number(&text).filter(|_| text.len() < 64)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for name in self.files.keys() {
            let _ = std::fs::remove_file(root().join(name));
        }
    }
}

const NODE: &str = "sys/devices/system/node";
const FIGURES: [&str; 4] = ["read_bandwidth", "write_bandwidth", "read_latency", "write_latency"];

/// A picture of the machine from any files: what it must be, and what is chosen from it.
pub fn topology(mut b: Bytes) {
    let (allowed, from) = (b.word() as u64, b.byte());
    let mut files = BTreeMap::new();
    while !b.is_empty() && files.len() < 60 {
        let (what, node) = (b.byte() % 9, b.byte() % 68);
        let name = match what {
            0 => format!("{NODE}/online"),
            1 => format!("{NODE}/has_memory"),
            2 => format!("{NODE}/node{node}/cpulist"),
            3 => format!("{NODE}/node{node}/distance"),
            4 => format!("{NODE}/node{node}/meminfo"),
            n => format!("{NODE}/node{node}/access0/initiators/{}", FIGURES[usize::from(n) - 5]),
        };
        let text = b.until(0);
        // Longer files are cut, which the unit tests look at.
        files.insert(name, text[..text.len().min(4000)].to_vec());
    }
    let tree = Tree::new(files);
    let t = Topology::read(&Tree::path("sys"));
    check_picture(&t, &tree);
    let allowed = NodeSet::from_bits(allowed);
    check_choices(&t, allowed, from % 70);
    check_choices(&t, t.memory_nodes(), from % 70);
    assert!(format!("{t:?}").starts_with("Topology"));
    // Over another picture the same comes out.
    let mut again = Topology::read(c"/sys");
    again.read_from(&Tree::path("sys"));
    assert!(again == t);
}

fn check_picture(t: &Topology, tree: &Tree) {
    let list = |name: &str| tree.text(&format!("{NODE}/{name}")).and_then(|t| reference::nodes(&t));
    let (listed, ignored) = list("online").unwrap_or_default();
    let invented = listed.is_empty();
    let online = if invented { NodeSet::from_bits(1) } else { listed };
    assert_eq!((t.online_nodes(), t.ignored_nodes(), t.len()), (online, ignored, online.len()));
    let mut cpus = [None; MAX_CPUS];
    for id in online {
        let of = |name: &str| tree.text(&format!("{NODE}/node{id}/{name}"));
        let node = t.node(id).expect("an online node");
        assert_eq!(node.id, id);
        let ranges = of("cpulist").and_then(|t| reference::list(&t));
        assert_eq!(node.has_cpus, ranges.as_ref().map_or(invented, |r| !r.is_empty()));
        for (low, high) in ranges.into_iter().flatten() {
            for (n, cpu) in (0..).zip(&mut cpus) {
                if (low..=high).contains(&n) {
                    *cpu = Some(id);
                }
            }
        }
        let total = of("meminfo").and_then(|t| t.split('\n').find_map(reference::mem_total));
        assert_eq!(node.memory_bytes, total.unwrap_or(0));
        let columns = (listed.len() as u64).saturating_add(ignored);
        let row = of("distance").and_then(|t| reference::distances(&t, online, columns)).unwrap_or_default();
        for to in 0..=255 {
            assert_eq!(node.distance_to(to), row.iter().find(|d| d.0 == to).map(|d| d.1));
        }
        let figure = |i: usize| {
            tree.number(&format!("{NODE}/node{id}/access0/initiators/{}", FIGURES[i])).filter(|&n| n != 0)
        };
        let got =
            [node.read_bandwidth_mib, node.write_bandwidth_mib, node.read_latency_ns, node.write_latency_ns];
        assert_eq!(got, [0, 1, 2, 3].map(figure));
    }
    if invented && cpus.iter().all(Option::is_none) {
        cpus.fill(Some(0));
    }
    for (n, cpu) in cpus.iter().enumerate() {
        assert_eq!(t.cpu_to_node(n), *cpu);
    }
    assert_eq!(t.cpu_to_node(MAX_CPUS), None);
    let mut memory = list("has_memory").unwrap_or_default().0.intersection(online);
    if memory.is_empty() {
        memory = t.nodes().filter(|n| n.memory_bytes != 0).map(|n| n.id).collect();
    }
    let memory = if memory.is_empty() { online } else { memory };
    assert_eq!(t.memory_nodes(), memory);
    assert!(t.nodes().all(|n| n.has_memory == memory.contains(n.id)) && t.nodes().count() == t.len());
}

/// The choices are members of what may be chosen, and nothing that may be is better.
fn check_choices(t: &Topology, allowed: NodeSet, from: u8) {
    let may: Vec<&Node> = t.nodes().filter(|n| n.has_memory && allowed.contains(n.id)).collect();
    let set = |nodes: Vec<&Node>| nodes.iter().map(|n| n.id).collect::<NodeSet>();
    let best = may.iter().filter_map(|n| n.read_bandwidth_mib).max();
    let wide = may.iter().copied().filter(|n| n.read_bandwidth_mib == best).collect();
    assert_eq!(t.high_bandwidth(allowed), set(wide));
    let best = may.iter().filter_map(|n| n.read_latency_ns).min();
    let quick = may.iter().copied().filter(|n| n.read_latency_ns == best).collect();
    assert_eq!(t.low_latency(allowed), set(quick));
    let large = t.large_capacity(allowed);
    let most = may.iter().map(|n| n.memory_bytes).max().unwrap_or(0);
    for n in &may {
        let bytes = n.memory_bytes;
        let lack = most - bytes;
        assert!(!large.contains(n.id) || lack <= most / 4);
        assert!(large.contains(n.id) || lack > most / 16);
    }
    assert_eq!(large.intersection(set(may.clone())), large);
    for c in [large, t.high_bandwidth(allowed), t.low_latency(allowed)] {
        assert_eq!(c.is_empty(), may.is_empty());
    }
    let distance = |to: u8| t.node(from).and_then(|n| n.distance_to(to)).map_or(256, u16::from);
    let near = t.nodes().map(|n| n.id).filter(|&n| allowed.contains(n));
    let near = near.min_by_key(|&n| (n != from, distance(n), n));
    assert_eq!(t.nearest(from, allowed), near);
}

/// A hierarchy of memory cgroups as the kernel shows it: the tightest limit is found.
pub fn cgroup(mut b: Bytes) {
    let version = 1 + b.byte() % 2;
    let (depth, outside) = (b.below(5), b.below(3));
    // A name with characters that mountinfo escapes.
    let names = ["a", "b.slice", "c d", "e\\f"];
    let below: Vec<&str> = (0..depth).map(|_| b.pick(&names)).collect();
    let above: Vec<&str> = (0..outside).map(|_| b.pick(&names)).collect();
    let (max, current) = match version {
        1 => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        _ => ("memory.max", "memory.current"),
    };
    let point = ["mnt", "mnt 2", "mnt\\3"][b.below(3)];
    let mut files = BTreeMap::new();
    let mut want: Option<(Option<u64>, u64)> = None;
    // From the mount point down to the process's own: on a tie the lower one counts.
    for n in 0..=depth {
        let dir = [&[point], &below[..n]].concat().join("/");
        let limit = match b.byte() {
            0..=99 => None,
            100..=109 => Some("max\n".to_owned()),
            110..=115 => Some("9223372036854771712\n".to_owned()),
            116..=120 => Some("garbage".to_owned()),
            _ => Some(format!("{}\n", b.half())),
        };
        let usage = b.flag().then(|| b.half() as u64);
        let figure = limit.as_deref().and_then(reference::number).filter(|&n| n < 1 << 62);
        if let Some(usage) = usage {
            files.insert(format!("{dir}/{current}"), format!("{usage}\n").into_bytes());
            let tighter = match (figure, want.and_then(|w| w.0)) {
                (Some(new), Some(old)) => new <= old,
                (Some(_), None) => true,
                // Without limits the lowest counts.
                (None, None) => true,
                (None, Some(_)) => false,
            };
            if want.is_none() || tighter {
                want = Some((figure, usage));
            }
        }
        if let Some(l) = limit {
            files.insert(format!("{dir}/{max}"), l.into_bytes());
        }
    }
    let escape = |s: &str| s.replace('\\', "\\134").replace(' ', "\\040");
    let own = |parts: &[&str]| format!("/{}", parts.join("/"));
    let line = match version {
        1 => format!("5:cpu:/x\n4:memory,hugetlb:{}\n0::/\n", own(&[&above[..], &below[..]].concat())),
        _ => format!("1:name=systemd:/x\n0::{}\n", own(&[&above[..], &below[..]].concat())),
    };
    files.insert("cgroup".into(), line.into_bytes());
    let at = escape(root().join(point).to_str().expect("ASCII"));
    let kind = if version == 1 { "cgroup cgroup rw,memory" } else { "cgroup2 cgroup2 rw" };
    let (inside, tags) = (escape(&own(&above)), ["", "shared:1 ", "shared:1 master:2 "][b.below(3)]);
    let info = format!(
        "20 1 0:3 / /proc rw - proc proc rw\n30 20 0:26 {inside} {at} rw,nosuid {tags}- {kind}\n\
         31 20 0:27 / /elsewhere rw - {kind}\n"
    );
    files.insert("mountinfo".into(), info.into_bytes());
    let _tree = Tree::new(files);
    let got = cgroup_memory_from(&Tree::path("cgroup"), &Tree::path("mountinfo"));
    assert_eq!(got.map(|c| (c.limit, c.usage)), want);
    assert!(got.is_none_or(|c| c.version == version));
}

/// Any text in the two files; `@` stands for the directory of the tree.
pub fn cgroup_of_any_text(mut b: Bytes) {
    let mut files = BTreeMap::new();
    for name in
        ["cgroup", "mountinfo", "a/memory.max", "a/memory.current", "a/b/memory.max", "a/b/memory.current"]
    {
        let text = string(b.until(0)).replace('@', root().to_str().expect("ASCII"));
        files.insert(name.to_owned(), text.chars().map(|c| c as u32 as u8).collect());
    }
    let _tree = Tree::new(files);
    let got = cgroup_memory_from(&Tree::path("cgroup"), &Tree::path("mountinfo"));
    assert!(got.is_none_or(|c| matches!(c.version, 1 | 2) && c.limit.is_none_or(|l| l < 1 << 63)));
    assert!(cgroup_memory_from(&Tree::path("none"), &Tree::path("mountinfo")).is_none());
}

/// Pools of huge pages of any sizes.
pub fn hugetlb(mut b: Bytes) {
    let mut files = BTreeMap::new();
    while !b.is_empty() && files.len() < 40 {
        let kib = match b.byte() {
            n @ 0..=40 => 1u64 << n,
            n => u64::from(n),
        };
        let what = ["nr_hugepages", "free_hugepages", "resv_hugepages", "other"][b.below(4)];
        files.insert(format!("huge/hugepages-{kib}kB/{what}"), b.until(0).to_vec());
    }
    let tree = Tree::new(files);
    let pools = hugetlb_pools_in(&Tree::path("huge"));
    let mut want = Vec::new();
    for shift in 13..=40 {
        let of = |what: &str| tree.number(&format!("huge/hugepages-{}kB/{what}", (1u64 << shift) >> 10));
        if let (Some(total), Some(free)) = (of("nr_hugepages"), of("free_hugepages")) {
            want.push((1u64 << shift, total, free, of("resv_hugepages").unwrap_or(0)));
        }
    }
    want.truncate(8);
    let got: Vec<_> = pools.as_slice().iter().map(|p| (p.page_size, p.total, p.free, p.reserved)).collect();
    assert_eq!(got, want);
    for p in pools.as_slice() {
        assert_eq!(pools.of_size(p.page_size), Some(p));
    }
}
