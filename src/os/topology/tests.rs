use super::super::files::testing::Tree;
use super::*;

const NODE: &str = "devices/system/node";
const ALL: NodeSet = NodeSet::from_bits(u64::MAX);

fn set(nodes: &[u8]) -> NodeSet {
    nodes.iter().copied().collect()
}

/// Writes one node's files; `hmat` is read bandwidth and read latency.
fn node(tree: &Tree, id: u32, cpus: &str, mib: u64, distance: &str, hmat: Option<(u64, u64)>) {
    let dir = format!("{NODE}/node{id}");
    tree.file(&format!("{dir}/cpulist"), format!("{cpus}\n"))
        .file(&format!("{dir}/distance"), format!("{distance}\n"))
        .file(
            &format!("{dir}/meminfo"),
            format!("Node {id} MemTotal:       {} kB\nNode {id} MemFree:        1 kB\n", mib * 1024),
        );
    if let Some((bandwidth, latency)) = hmat {
        for (name, value) in [
            ("read_bandwidth", bandwidth),
            ("write_bandwidth", bandwidth / 2),
            ("read_latency", latency),
            ("write_latency", 0),
        ] {
            tree.file(&format!("{dir}/access0/initiators/{name}"), format!("{value}\n"));
        }
    }
}

/// Two DDR sockets, HBM without CPUs, CXL without CPUs.
fn tiers4(tree: &Tree) {
    tree.file(&format!("{NODE}/online"), "0-3\n").file(&format!("{NODE}/has_memory"), "0-3\n");
    node(tree, 0, "0-1", 512, "10 21 12 28", Some((102_400, 100)));
    node(tree, 1, "2-3", 512, "21 10 22 24", Some((102_400, 100)));
    node(tree, 2, "", 256, "12 22 10 30", Some((409_600, 130)));
    node(tree, 3, "", 1280, "28 24 30 10", Some((30_720, 300)));
}

#[test]
fn node_sets() {
    let mut s = NodeSet::empty();
    assert!(s.is_empty() && s.first().is_none() && s == NodeSet::default());
    assert!(s.insert(63) && s.insert(5) && !s.insert(64) && !s.insert(255));
    assert_eq!((s.len(), s.first()), (2, Some(5)));
    assert!(s.contains(63) && !s.contains(64) && !s.contains(0) && !s.contains(255));
    assert_eq!(s.iter().collect::<Vec<_>>(), [5, 63]);
    assert_eq!(s.iter().len(), 2);
    assert_eq!(NodeSet::single(64), None);
    assert_eq!(NodeSet::single(63).map(NodeSet::bits), Some(1 << 63));
    assert_eq!(s.union(set(&[1])), set(&[1, 5, 63]));
    assert_eq!(s.intersection(set(&[5, 6])), set(&[5]));
    assert_eq!(set(&[0, 1, 2, 3, 7, 62, 63]).to_string(), "0-3,7,62-63");
    assert_eq!(ALL.to_string(), "0-63");
    assert_eq!(NodeSet::empty().to_string(), "none");
    assert_eq!(format!("{:?}", set(&[1, 9])), "{1, 9}");
}

#[test]
fn tiers() {
    let tree = Tree::new("tiers");
    tiers4(&tree);
    let t = Topology::read(&tree.path(""));
    assert_eq!((t.len(), t.ignored_nodes(), t.is_empty()), (4, 0, false));
    assert_eq!(t.memory_nodes(), set(&[0, 1, 2, 3]));
    assert_eq!(t.high_bandwidth(ALL), set(&[2]));
    assert_eq!(t.low_latency(ALL), set(&[0, 1]));
    assert_eq!(t.large_capacity(ALL), set(&[3]));
    assert_eq!(t.high_bandwidth(set(&[0, 1, 3])), set(&[0, 1]));
    assert_eq!(t.low_latency(set(&[2, 3])), set(&[2]));
    assert_eq!(t.large_capacity(set(&[0, 1, 2])), set(&[0, 1]));
    assert_eq!(t.high_bandwidth(set(&[9])), NodeSet::empty());
    assert_eq!(t.nearest(0, ALL), Some(0));
    assert_eq!(t.nearest(0, set(&[1, 2, 3])), Some(2));
    assert_eq!(t.nearest(1, set(&[2, 3])), Some(2));
    assert_eq!(t.nearest(3, set(&[0, 1, 2])), Some(1));
    assert_eq!(t.nearest(40, set(&[1, 3])), Some(1), "unknown origin");
    assert_eq!(t.nearest(0, set(&[40])), None);
    assert_eq!(t.nearest(40, set(&[40])), None);
    assert_eq!(
        [0, 1, 2, 3, 4, 5000].map(|c| t.cpu_to_node(c)),
        [Some(0), Some(0), Some(1), Some(1), None, None]
    );
    let hbm = t.node(2).unwrap();
    assert!(!hbm.has_cpus && hbm.has_memory);
    assert_eq!(hbm.memory_bytes, 256 << 20);
    assert_eq!(hbm.read_bandwidth_mib, Some(409_600));
    assert_eq!(hbm.write_bandwidth_mib, Some(204_800));
    assert_eq!(hbm.read_latency_ns, Some(130));
    assert_eq!(hbm.write_latency_ns, None, "0 means unknown");
    assert_eq!(hbm.distance_to(3), Some(30));
    assert_eq!(hbm.distance_to(4), None);
    assert_eq!(hbm.distance_to(200), None);
    assert!(format!("{t:?}").contains("409600"));
    assert_eq!(t.nodes().map(|n| n.id).collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn a_second_reading_forgets_the_first() {
    let tree = Tree::new("again");
    tiers4(&tree);
    let mut t = Topology::read(&tree.path(""));
    t.read_from(c"/no/such/root");
    assert_eq!(t, Topology::read(c"/no/such/root"));
}

#[test]
fn without_hmat_nothing_tells_nodes_apart() {
    let tree = Tree::new("flat");
    tree.file(&format!("{NODE}/online"), "0-1").file(&format!("{NODE}/has_memory"), "0-1");
    node(&tree, 0, "0", 219, "10 20", None);
    node(&tree, 1, "1", 252, "20 10", None);
    let t = Topology::read(&tree.path(""));
    assert_eq!(t.high_bandwidth(ALL), set(&[0, 1]));
    assert_eq!(t.low_latency(ALL), set(&[0, 1]));
    assert_eq!(t.large_capacity(ALL), set(&[0, 1]), "219 of 252 is a tie");
    assert_eq!(t.high_bandwidth(set(&[1])), set(&[1]));
    for (mib, tie) in [(188, false), (190, true)] {
        node(&tree, 0, "0", mib, "10 20", None);
        let t = Topology::read(&tree.path(""));
        assert_eq!(t.large_capacity(ALL).contains(0), tie, "a quarter: {mib}");
    }
    node(&tree, 1, "1", 64_000, "20 10", None);
    for (mib, tie) in [(59_999, false), (60_000, true)] {
        node(&tree, 0, "0", mib, "10 20", None);
        let t = Topology::read(&tree.path(""));
        assert_eq!(t.large_capacity(ALL).contains(0), tie, "a sixteenth: {mib}");
    }
}

#[test]
fn a_node_without_figures_does_not_win() {
    let tree = Tree::new("partial");
    tree.file(&format!("{NODE}/online"), "0-2\n").file(&format!("{NODE}/has_memory"), "0-2\n");
    node(&tree, 0, "0", 100, "10 20 20", None);
    node(&tree, 1, "", 0, "20 10 20", Some((1, 5000)));
    node(&tree, 2, "", 50, "20 20 10", Some((0, 0)));
    let t = Topology::read(&tree.path(""));
    assert_eq!(t.high_bandwidth(ALL), set(&[1]));
    assert_eq!(t.low_latency(ALL), set(&[1]));
    assert_eq!(t.large_capacity(ALL), set(&[0]));
    assert_eq!(t.low_latency(set(&[0, 2])), set(&[0, 2]));
    assert_eq!(t.large_capacity(set(&[1])), set(&[1]));
}

#[test]
fn holes_and_nodes_beyond_the_set() {
    let tree = Tree::new("holes");
    tree.file(&format!("{NODE}/online"), "1,5,63-65,1000\n").file(&format!("{NODE}/has_memory"), "1,63-65\n");
    node(&tree, 1, "0-3,1022-2000", 10, "10 17 20 30 40 50", None);
    node(&tree, 5, "4,4000", 0, "17 10 12 30 40 50", None);
    node(&tree, 63, "", 10, "20 12 10 30 40 50", None);
    let t = Topology::read(&tree.path(""));
    assert_eq!((t.len(), t.ignored_nodes()), (3, 3));
    assert_eq!(t.online_nodes(), set(&[1, 5, 63]));
    assert_eq!(t.memory_nodes(), set(&[1, 63]));
    assert!(t.node(0).is_none() && t.node(64).is_none() && t.node(255).is_none());
    assert_eq!(t.node(5).unwrap().distance_to(63), Some(12));
    assert_eq!(t.nearest(5, t.memory_nodes()), Some(63));
    assert_eq!(t.nearest(0, t.memory_nodes()), Some(1));
    assert_eq!([4, 1022, 1023, 1024].map(|c| t.cpu_to_node(c)), [Some(5), Some(1), Some(1), None]);
    assert!(!t.node(5).unwrap().has_memory && t.node(5).unwrap().has_cpus);
}

/// One node 0, every CPU on it, memory there but of unknown size.
fn assert_single(t: &Topology) {
    assert_eq!((t.len(), t.memory_nodes()), (1, set(&[0])));
    let node = t.node(0).unwrap();
    assert!(node.has_cpus && node.has_memory && node.memory_bytes == 0);
    assert_eq!([0, 1023].map(|c| t.cpu_to_node(c)), [Some(0); 2]);
    for choice in [t.high_bandwidth(ALL), t.low_latency(ALL), t.large_capacity(ALL)] {
        assert_eq!(choice, set(&[0]));
    }
    assert_eq!(t.nearest(0, ALL), Some(0));
}

#[test]
fn no_tree_is_one_node() {
    assert_single(&Topology::read(c"/no/such/root"));
    assert_single(&Topology::read(c""));
    let long = std::ffi::CString::new(vec![b'x'; 5000]).unwrap();
    assert_single(&Topology::read(&long));
    let t = Topology::empty();
    assert!(t.is_empty() && t.nodes().next().is_none() && t.cpu_to_node(0).is_none());
    assert!(t.high_bandwidth(ALL).is_empty() && t.large_capacity(ALL).is_empty());
    assert_eq!(t.nearest(0, ALL), None);
}

#[test]
fn garbage_is_one_node() {
    for (i, online) in
        [&b""[..], b"\n", b"zero", b"3-1", b"-1", b"\xff\xfe\x00", b"99999999999999999999", b"0,1,"]
            .into_iter()
            .enumerate()
    {
        let tree = Tree::new(&format!("garbage{i}"));
        for file in [
            "online",
            "has_memory",
            "node0/cpulist",
            "node0/distance",
            "node0/meminfo",
            "node0/access0/initiators/read_bandwidth",
        ] {
            if !(online.trim_ascii().is_empty() && file == "node0/cpulist") {
                tree.file(&format!("{NODE}/{file}"), online);
            }
        }
        assert_single(&Topology::read(&tree.path("")));
    }
}

#[test]
fn numbers_too_large_are_unknown() {
    let tree = Tree::new("large");
    tree.file(&format!("{NODE}/online"), "0-18446744073709551615\n")
        .file(&format!("{NODE}/has_memory"), "999999999999\n");
    node(&tree, 0, "0-18446744073709551615", 1, "10 256", None);
    tree.file(&format!("{NODE}/node0/meminfo"), "Node 0 MemTotal: 18446744073709551615 kB\n")
        .file(&format!("{NODE}/node0/access0/initiators/read_bandwidth"), "18446744073709551616\n");
    let t = Topology::read(&tree.path(""));
    assert_eq!(t.len(), 64);
    assert_eq!(t.ignored_nodes(), u64::MAX - 63);
    assert_eq!(t.memory_nodes(), ALL, "nobody has memory: all may");
    let n = t.node(0).unwrap();
    assert_eq!((n.memory_bytes, n.read_bandwidth_mib), (0, None));
    assert_eq!(n.distance, [0; 64]);
    assert_eq!(t.cpu_to_node(1023), Some(0));
}

#[test]
fn a_list_longer_than_the_buffer_keeps_its_head() {
    let tree = Tree::new("long");
    let cpus: Vec<String> = (0..4096).step_by(2).map(|c| c.to_string()).collect();
    tree.file(&format!("{NODE}/online"), "0\n").file(&format!("{NODE}/node0/cpulist"), cpus.join(","));
    let t = Topology::read(&tree.path(""));
    assert_eq!([0, 1, 1022, 1023].map(|c| t.cpu_to_node(c)), [Some(0), None, Some(0), None]);
}

#[test]
fn memory_nodes_without_the_file() {
    let tree = Tree::new("nofile");
    tree.file(&format!("{NODE}/online"), "0-1\n");
    node(&tree, 0, "0", 0, "10 20", None);
    node(&tree, 1, "", 7, "20 10", None);
    let t = Topology::read(&tree.path(""));
    assert_eq!(t.memory_nodes(), set(&[1]));
    assert_eq!(t.nearest(0, t.memory_nodes()), Some(1));
}

#[test]
fn this_machine() {
    let t = Topology::read(c"/sys");
    assert!(!t.is_empty() && !t.memory_nodes().is_empty());
    assert!(t.nodes().any(|n| n.has_cpus));
    assert!(t.nodes().all(|n| n.distance_to(n.id).is_none_or(|d| d == 10)));
}

#[test]
fn parsers_alone() {
    let list = parse_node_list(b"62-70,63,80").unwrap();
    assert_eq!((list.set, list.ignored), (set(&[62, 63]), 8));
    assert_eq!(parse_node_list(b"62-"), None);
    let online = set(&[2, 4]);
    let row = parse_distances(b" 10 20\n", online, 2).unwrap();
    assert_eq!((row[2], row[4], row[0]), (10, 20, 0));
    assert_eq!(parse_distances(b"10 20 30", online, 2), None);
    assert_eq!(parse_distances(b"10", online, 2), None);
    assert_eq!(parse_distances(b"10 0", online, 2), None);
    assert_eq!(parse_distances(b"10 -1", online, 2), None);
    assert_eq!(parse_mem_total(b"Node 0 MemTotal: 4 kB"), Some(4096));
    assert_eq!(parse_mem_total(b"Node 0 MemFree: 4 kB"), None);
    assert_eq!(parse_mem_total(b"MemTotal:"), None);
}
