use super::super::files::testing::Tree;
use super::*;

const STATUS: &[u8] = b"Name:\tx\nGroups:\t0 1 2\nVmPeak:\t 3060 kB\nVmLck:\t      12 kB\n\
    VmPin:\t 0 kB\nCapInh:\t0000000000000000\nCapEff:\t000001fffeffffff\nCapBnd:\t0\n";

#[test]
fn status() {
    let s = parse_status(STATUS);
    assert_eq!(s.vm_locked, Some(12 << 10));
    assert_eq!(s.cap_effective, Some(0x1ff_feff_ffff));
    for bad in [
        &b""[..],
        b"\n\n\n",
        b"VmLck:\nCapEff:\n",
        b"VmLck: -1 kB\nCapEff: xyz",
        b"VmLck: 99999999999999999999 kB\nCapEff: 11111111111111111",
        b"VmLck: 18446744073709551615 kB\n",
        b"VmLck: 12\n",
        b"\xff\x00\xfe",
    ] {
        assert_eq!(parse_status(bad), Status::default(), "{bad:?}");
    }
}

#[test]
fn this_process() {
    let l = Limits::read();
    assert_eq!(l.page_size, page_size());
    if let (Some(soft), Some(hard)) = (l.memlock_soft, l.memlock_hard) {
        assert!(soft <= hard);
    }
    let status = read_status(|_| false);
    assert_eq!(status.cap_effective, capget_effective(), "two ways to ask");
    assert!(status.vm_locked.is_some());
    assert!(!l.to_string().is_empty());
    let maps = map_count().unwrap();
    assert!(maps > 5 && maps < max_map_count().unwrap_or(u64::MAX));
    assert!(overcommit_memory().is_none_or(|m| m <= 2));
    assert_eq!(thp_mode() == Thp::Unknown, thp_size().is_none());
    assert!(hugetlb_pools().as_slice().iter().all(|p| p.free <= p.total && p.page_size > 4096));
    // Whether there is one depends on the machine.
    if let Some(c) = cgroup_memory() {
        assert!(matches!(c.version, 1 | 2));
        assert!(c.usage > 0);
    }
}

#[test]
fn threads_other_than_the_first_see_the_same() {
    let here = Limits::read();
    let there = std::thread::spawn(Limits::read).join().unwrap();
    assert_eq!(here.has_ipc_lock, there.has_ipc_lock);
    assert_eq!(here.memlock_soft, there.memlock_soft);
}

#[test]
fn headroom() {
    let mut l = Limits {
        memlock_soft: Some(65_536 + 4095),
        memlock_hard: None,
        has_ipc_lock: false,
        vm_locked: 16_384,
        page_size: 4096,
    };
    assert_eq!(l.headroom(), Some(49_152), "whole pages only");
    assert_eq!(
        l.to_string(),
        "RLIMIT_MEMLOCK 69631 (hard unlimited), locked now 16384, CAP_IPC_LOCK not held"
    );
    l.vm_locked = 1 << 30;
    assert_eq!(l.headroom(), Some(0), "the limit was lowered");
    l.memlock_soft = Some(u64::MAX - 1);
    assert!(l.headroom() > Some(1 << 60));
    l.has_ipc_lock = true;
    assert_eq!(l.headroom(), None);
    l.has_ipc_lock = false;
    l.memlock_soft = None;
    assert_eq!(l.headroom(), None);
    l.page_size = 0;
    l.memlock_soft = Some(1);
    l.vm_locked = 0;
    assert_eq!(l.headroom(), Some(1), "no division by a garbage page size");
    assert_eq!(limit(libc::RLIM_INFINITY), None);
    assert_eq!(limit(0), Some(0));
}

#[test]
fn thp() {
    assert_eq!(parse_thp(b"[always] madvise never\n"), Thp::Always);
    assert_eq!(parse_thp(b"always [madvise] never\n"), Thp::Madvise);
    assert_eq!(parse_thp(b"always madvise [never]\n"), Thp::Never);
    for bad in [&b""[..], b"always", b"[", b"[inherit]", b"\xff[never]"] {
        assert_eq!(parse_thp(bad), Thp::Unknown, "{bad:?}");
    }
}

#[test]
fn pools() {
    let tree = Tree::new("pools");
    for (size, [total, free, reserved]) in [
        ("2048", ["7", "5", "2"]),
        ("1048576", ["1", "0", "0"]),
        ("64", ["x", "1", "1"]),
        ("3", ["1", "1", "1"]),
    ] {
        tree.file(&format!("hugepages-{size}kB/nr_hugepages"), total)
            .file(&format!("hugepages-{size}kB/free_hugepages"), free)
            .file(&format!("hugepages-{size}kB/resv_hugepages"), reserved);
    }
    let pools = hugetlb_pools_in(&tree.path(""));
    assert_eq!(pools.as_slice().len(), 2);
    let two = pools.of_size(2 << 20).unwrap();
    assert_eq!((two.total, two.free, two.reserved), (7, 5, 2));
    assert_eq!(pools.as_slice()[1].page_size, 1 << 30);
    assert_eq!(pools.of_size(65_536), None);
    for shift in 13..=40 {
        let dir = format!("hugepages-{}kB", (1u64 << shift) >> 10);
        tree.file(&format!("{dir}/nr_hugepages"), "1").file(&format!("{dir}/free_hugepages"), "1");
    }
    assert_eq!(hugetlb_pools_in(&tree.path("")).as_slice().len(), 8);
    assert_eq!(hugetlb_pools_in(c"/no/such").as_slice(), []);
}

#[test]
fn cgroup_lines() {
    assert_eq!(parse_cgroup(b"0::/a:b"), Some((2, &b"/a:b"[..])));
    assert_eq!(parse_cgroup(b"4:memory:/x"), Some((1, &b"/x"[..])));
    assert_eq!(parse_cgroup(b"4:cpu,memory:/"), Some((1, &b"/"[..])));
    for other in [&b"1:cpu:/x"[..], b"", b"0:", b"0::", b"0::x", b"memory", b"3:memory2:/"] {
        assert_eq!(parse_cgroup(other), None, "{other:?}");
    }
    assert_eq!(parse_cgroup_value(b"max\n"), Some(None));
    assert_eq!(parse_cgroup_value(b"4096\n"), Some(Some(4096)));
    for no_limit in [&b"9223372036854771712\n"[..], b"9223372036854710272", b"18446744073709551615"] {
        assert_eq!(parse_cgroup_value(no_limit), Some(None));
    }
    for bad in [&b""[..], b"-1", b"maximum", b"18446744073709551616"] {
        assert_eq!(parse_cgroup_value(bad), None, "{bad:?}");
    }
}

#[test]
fn mounts() {
    let m = parse_mountinfo(
        b"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 master:2 - cgroup c rw,memory",
    )
    .unwrap();
    assert_eq!((m.root, m.mount_point), (&b"/"[..], &b"/sys/fs/cgroup/memory"[..]));
    assert!(m.has_memory(1) && !m.has_memory(2) && !m.has_memory(0));
    for bad in [
        &b""[..],
        b"35 31 0:32",
        b"35 31 0:32 / /x rw cgroup c rw",
        b"35 31 0:32 / /x rw - cgroup",
        b"35 31 0:32 root /x rw - cgroup c rw",
        b"- - - - - - -",
    ] {
        assert_eq!(parse_mountinfo(bad), None, "{bad:?}");
    }
    let text = |t: &[u8]| unescaped(t).collect::<Vec<_>>();
    assert_eq!(text(b"/a\\040b\\134"), b"/a b\\");
    assert_eq!(text(b"\\04"), b"\\04");
    assert_eq!(text(b"\\777\\9"), b"\\777\\9", "not a byte");
    assert_eq!(below(b"/", b"/"), Some(&b""[..]));
    assert_eq!(below(b"/a/b", b"/"), Some(&b"/a/b"[..]));
    assert_eq!(below(b"/a/b", b"/a"), Some(&b"/b"[..]));
    assert_eq!(below(b"/a b", b"/a\\040b"), Some(&b""[..]));
    for (path, root) in
        [(&b"/ab"[..], &b"/a"[..]), (b"/a", b"/a/b"), (b"/../x", b"/"), (b"/..", b"/"), (b"/a/../b", b"/a")]
    {
        assert_eq!(below(path, root), None, "{path:?} {root:?}");
    }
}

/// Writes `cgroup` and `mountinfo`, mounts at `mount` inside the tree, and asks.
fn ask(tree: &Tree, cgroup: &str, mounts: &[(&str, &str, &str)]) -> Option<CgroupMemory> {
    let lines: String = mounts
        .iter()
        .map(|(root, at, fs)| {
            let at = tree.path(at);
            format!("35 31 0:32 {root} {} rw - {fs}\n", at.to_str().unwrap())
        })
        .collect();
    tree.file("cgroup", cgroup).file("mountinfo", format!("1 0 0:1 / / rw - ext4 d rw\n{lines}"));
    cgroup_memory_from(&tree.path("cgroup"), &tree.path("mountinfo"))
}

fn answer(version: u8, limit: Option<u64>, usage: u64) -> Option<CgroupMemory> {
    Some(CgroupMemory { version, limit, usage })
}

#[test]
fn version_2_takes_the_smallest_limit_on_the_way_up() {
    let tree = Tree::new("cgroup2");
    let v2 = [("/", "m", "cgroup2 cgroup2 rw")];
    assert_eq!(ask(&tree, "0::/a/b\n", &v2), None, "no files: no controller");
    tree.file("m/a/b/memory.max", "max\n").file("m/a/b/memory.current", "10\n");
    assert_eq!(ask(&tree, "0::/a/b\n", &v2), answer(2, None, 10));
    tree.file("m/a/memory.max", "1000\n").file("m/a/memory.current", "70\n");
    assert_eq!(ask(&tree, "0::/a/b\n", &v2), answer(2, Some(1000), 70));
    tree.file("m/a/b/memory.max", "1000\n");
    assert_eq!(ask(&tree, "0::/a/b\n", &v2), answer(2, Some(1000), 10));
    tree.file("m/a/b/memory.max", "2000\n");
    assert_eq!(ask(&tree, "0::/a/b\n", &v2), answer(2, Some(1000), 70));
    // The group is gone, or threaded and without memory files: those above still count.
    assert_eq!(ask(&tree, "0::/a/gone/x (deleted)\n", &v2), answer(2, Some(1000), 70));
    tree.file("m/a/memory.max", "garbage");
    assert_eq!(ask(&tree, "0::/a\n", &v2), answer(2, None, 70));
    tree.file("m/a/memory.current", "garbage");
    assert_eq!(ask(&tree, "0::/a\n", &v2), None);
}

#[test]
fn version_1_wins_where_it_has_the_controller() {
    let tree = Tree::new("cgroup1");
    let mounts = [
        ("/", "cpu", "cgroup c rw,cpu"),
        ("/", "unified", "cgroup2 c rw"),
        ("/docker/x", "memory", "cgroup c rw,memory"),
    ];
    tree.file("memory/memory.limit_in_bytes", "9223372036854771712\n")
        .file("memory/memory.usage_in_bytes", "5\n")
        .file("memory/in/memory.limit_in_bytes", "4096\n")
        .file("memory/in/memory.usage_in_bytes", "6\n");
    for text in ["9:pids:/\n4:memory:/docker/x/in\n0::/\n", "0::/\n4:memory:/docker/x/in\n"] {
        assert_eq!(ask(&tree, text, &mounts), answer(1, Some(4096), 6));
    }
    assert_eq!(ask(&tree, "4:memory:/docker/x\n", &mounts), answer(1, None, 5));
    assert_eq!(
        ask(&tree, "4:memory:/elsewhere\n", &mounts),
        answer(1, None, 5),
        "not below the mount: the mount itself"
    );
    assert_eq!(ask(&tree, "4:memory:/../../other\n", &mounts), answer(1, None, 5));
    // A second mount shows more of our path than the first.
    let mounts = [("/y", "other", "cgroup c rw,memory"), ("/docker", "memory", "cgroup c rw,memory")];
    assert_eq!(ask(&tree, "4:memory:/docker/in\n", &mounts), answer(1, Some(4096), 6));
}

#[test]
fn mount_points_with_blanks() {
    let tree = Tree::new("blanks");
    tree.file("a b/g/memory.max", "77\n").file("a b/g/memory.current", "7\n");
    assert_eq!(ask(&tree, "0::/g\n", &[("/", "a\\040b", "cgroup2 c rw")]), answer(2, Some(77), 7));
}

#[test]
fn cgroup_garbage() {
    let tree = Tree::new("cgroup_garbage");
    for text in ["", "\n\n", "::::", "0", "4:memory:"] {
        assert_eq!(ask(&tree, text, &[]), None, "{text:?}");
    }
    let long = format!("0::/{}\n", "x/".repeat(1500));
    tree.file("m/memory.max", "5").file("m/memory.current", "4");
    assert_eq!(
        ask(&tree, &long, &[("/", "m", "cgroup2 c rw")]),
        answer(2, Some(5), 4),
        "a path too long: the mount itself"
    );
    assert_eq!(cgroup_memory_from(c"/no/such", c"/no/such"), None);
}
