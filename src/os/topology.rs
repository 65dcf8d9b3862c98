//! The machine's NUMA nodes, and which of them an OpenMP memory space means.
//!
//! [`Topology::read`] takes the picture once from `/sys/devices/system/node` (kernel documents
//! `Documentation/admin-guide/mm/numaperf.rst` and `Documentation/ABI/stable/sysfs-devices-node`):
//!
//! | file | gives |
//! |---|---|
//! | `online` | the nodes; their numbers may have holes |
//! | `has_memory` | which of them have memory |
//! | `nodeN/cpulist` | CPUs; a node without any is normal (HBM, CXL, GPU memory) |
//! | `nodeN/distance` | one SLIT figure for each *online* node, in ascending order |
//! | `nodeN/meminfo` | `MemTotal` |
//! | `nodeN/access0/initiators/*` | bandwidth and latency from the best initiator (HMAT, CDAT) |
//!
//! What is absent or makes no sense is left unknown; there is always at least one node after
//! reading. The choices made from it ([`Topology::high_bandwidth`] and its sisters) are pure
//! functions of the picture and a set of allowed nodes, so they are tested on invented machines.
//!
//! The picture has a fixed size (about 10 KiB) and no heap behind it, since an allocator asks for
//! it: put it in a static with [`Topology::empty`] and fill it with [`Topology::read_from`].
//! Memory that is hot-plugged later is not seen; whether a node is usable is for the kernel to say.

use super::files::{StackPath, for_each_line, parse_kib, parse_list, parse_u64, read_into, read_u64};
use core::ffi::CStr;
use core::fmt;
use core::ops::ControlFlow;

/// Nodes that a [`NodeSet`] and a [`Topology`] can hold: numbers 0 to 63.
pub const MAX_NODES: usize = 64;

/// CPUs whose node a [`Topology`] remembers: numbers 0 to 1023.
pub const MAX_CPUS: usize = 1024;

/// `cpus[n]` of a CPU that no node lists.
const NO_NODE: u8 = u8::MAX;

/// A set of NUMA nodes, numbers 0 to 63; the bit layout is that of a one-word kernel node mask.
///
/// ```
/// use pinned_alloc::os::topology::NodeSet;
///
/// let s: NodeSet = NodeSet::from_bits(0b1001);
/// assert_eq!(s.to_string(), "0,3");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct NodeSet(u64);

impl NodeSet {
    /// The set without nodes.
    ///
    /// ```
    /// use pinned_alloc::os::topology::NodeSet;
    ///
    /// assert!(NodeSet::empty().is_empty());
    /// ```
    pub const fn empty() -> Self {
        Self(0)
    }

    /// The set of node `node` alone; `None` from 64 on.
    ///
    /// ```
    /// use pinned_alloc::os::topology::NodeSet;
    ///
    /// assert_eq!(NodeSet::single(3).unwrap().bits(), 8);
    /// assert!(NodeSet::single(64).is_none());
    /// ```
    pub const fn single(node: u8) -> Option<Self> {
        match 1u64.checked_shl(node as u32) {
            Some(bit) => Some(Self(bit)),
            None => None,
        }
    }

    /// The set whose bit `n` says that node `n` is in it.
    ///
    /// ```
    /// use pinned_alloc::os::topology::NodeSet;
    ///
    /// assert!(NodeSet::from_bits(0b10).contains(1));
    /// ```
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Bit `n` says that node `n` is in the set.
    ///
    /// ```
    /// use pinned_alloc::os::topology::NodeSet;
    ///
    /// assert_eq!(NodeSet::empty().bits(), 0);
    /// ```
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether `node` is in the set; never true from 64 on.
    ///
    /// ```
    /// use pinned_alloc::os::topology::NodeSet;
    ///
    /// assert!(!NodeSet::from_bits(1).contains(200));
    /// ```
    pub const fn contains(self, node: u8) -> bool {
        match Self::single(node) {
            Some(one) => self.0 & one.0 != 0,
            None => false,
        }
    }

    /// Puts `node` into the set. Returns false, and changes nothing, from 64 on.
    ///
    /// ```
    /// use pinned_alloc::os::topology::NodeSet;
    ///
    /// let mut s = NodeSet::empty();
    /// assert!(s.insert(2) && !s.insert(64));
    /// assert_eq!(s.bits(), 4);
    /// ```
    pub const fn insert(&mut self, node: u8) -> bool {
        match Self::single(node) {
            Some(one) => {
                self.0 |= one.0;
                true
            }
            None => false,
        }
    }

    /// The nodes that are in either set.
    ///
    /// ```
    /// use pinned_alloc::os::topology::NodeSet;
    ///
    /// assert_eq!(NodeSet::from_bits(1).union(NodeSet::from_bits(2)).bits(), 3);
    /// ```
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The nodes that are in both sets.
    ///
    /// ```
    /// use pinned_alloc::os::topology::NodeSet;
    ///
    /// assert!(NodeSet::from_bits(1).intersection(NodeSet::from_bits(2)).is_empty());
    /// ```
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// How many nodes are in the set.
    ///
    /// ```
    /// use pinned_alloc::os::topology::NodeSet;
    ///
    /// assert_eq!(NodeSet::from_bits(0b101).len(), 2);
    /// ```
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether no node is in the set.
    ///
    /// ```
    /// use pinned_alloc::os::topology::NodeSet;
    ///
    /// assert!(!NodeSet::from_bits(1).is_empty());
    /// ```
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The lowest node in the set.
    ///
    /// ```
    /// use pinned_alloc::os::topology::NodeSet;
    ///
    /// assert_eq!(NodeSet::from_bits(0b100).first(), Some(2));
    /// ```
    pub const fn first(self) -> Option<u8> {
        if self.0 == 0 { None } else { Some(self.0.trailing_zeros() as u8) }
    }

    /// The nodes, ascending.
    ///
    /// ```
    /// use pinned_alloc::os::topology::NodeSet;
    ///
    /// assert!(NodeSet::from_bits(0b101).iter().eq([0, 2]));
    /// ```
    pub const fn iter(self) -> NodeIter {
        NodeIter(self)
    }
}

impl IntoIterator for NodeSet {
    type Item = u8;
    type IntoIter = NodeIter;

    fn into_iter(self) -> NodeIter {
        self.iter()
    }
}

impl FromIterator<u8> for NodeSet {
    /// Collects node numbers; those from 64 on are left out.
    fn from_iter<I: IntoIterator<Item = u8>>(nodes: I) -> Self {
        let mut set = Self::empty();
        for node in nodes {
            set.insert(node);
        }
        set
    }
}

/// The kernel's list format, `0-3,7`; `none` for the empty set.
impl fmt::Display for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        let mut rest = self.0;
        let mut comma = "";
        while rest != 0 {
            let low = rest.trailing_zeros();
            // Length of the run of ones at `low`, at most 64 - low.
            let run = (rest >> low).trailing_ones();
            let high = low.saturating_add(run).saturating_sub(1);
            write!(f, "{comma}{low}")?;
            if run > 1 {
                write!(f, "-{high}")?;
            }
            comma = ",";
            // Clears bits 0..=high; high is at most 63.
            rest &= u64::MAX.checked_shl(high.saturating_add(1)).unwrap_or(0);
        }
        Ok(())
    }
}

impl fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The nodes of a [`NodeSet`], ascending.
///
/// ```
/// use pinned_alloc::os::topology::NodeSet;
///
/// assert_eq!(NodeSet::from_bits(0b101).iter().len(), 2);
/// ```
#[derive(Clone, Debug)]
pub struct NodeIter(NodeSet);

impl Iterator for NodeIter {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let node = self.0.first()?;
        // Clears the lowest bit, which is set.
        self.0.0 &= self.0.0.wrapping_sub(1);
        Some(node)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.len(), Some(self.0.len()))
    }
}

impl ExactSizeIterator for NodeIter {}

/// What is known of one NUMA node.
///
/// ```
/// use pinned_alloc::os::topology::Topology;
///
/// let t = Topology::read(c"/sys");
/// for n in t.nodes() {
///     println!("node {}: {:?} bytes, {:?} MiB/s", n.id, n.memory_bytes, n.read_bandwidth_mib);
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Node {
    /// The kernel's number of the node, 0 to 63.
    pub id: u8,
    /// Whether the node has CPUs that are online.
    pub has_cpus: bool,
    /// Whether the kernel can place pages here.
    pub has_memory: bool,
    /// `MemTotal` of the node in bytes: what the kernel manages, a little less than what is built
    /// in. 0 when unknown, or when there is none.
    pub memory_bytes: u64,
    /// Read bandwidth in MiB/s from the initiator that reaches the node best.
    pub read_bandwidth_mib: Option<u64>,
    /// Write bandwidth in MiB/s, likewise.
    pub write_bandwidth_mib: Option<u64>,
    /// Read latency in nanoseconds, likewise.
    pub read_latency_ns: Option<u64>,
    /// Write latency in nanoseconds, likewise.
    pub write_latency_ns: Option<u64>,
    /// SLIT distance from this node to node `n`: 10 is local, twice that takes twice as long; 0
    /// is unknown (the kernel never reports 0).
    pub distance: [u8; MAX_NODES],
}

impl Node {
    /// Node `id` with everything unknown.
    const fn unknown(id: u8) -> Self {
        Self {
            id,
            has_cpus: false,
            has_memory: false,
            memory_bytes: 0,
            read_bandwidth_mib: None,
            write_bandwidth_mib: None,
            read_latency_ns: None,
            write_latency_ns: None,
            distance: [0; MAX_NODES],
        }
    }

    /// The SLIT distance to node `to`, when known.
    ///
    /// ```
    /// use pinned_alloc::os::topology::Topology;
    ///
    /// let t = Topology::read(c"/sys");
    /// for n in t.nodes() {
    ///     println!("{} to 0: {:?}", n.id, n.distance_to(0));
    /// }
    /// ```
    pub fn distance_to(&self, to: u8) -> Option<u8> {
        self.distance.get(usize::from(to)).copied().filter(|&d| d != 0)
    }
}

/// The NUMA nodes of the machine at the time of reading.
///
/// ```
/// use pinned_alloc::os::topology::Topology;
///
/// let t = Topology::read(c"/sys");
/// println!("{} nodes, {} of them with memory", t.len(), t.memory_nodes().len());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Topology {
    /// `nodes[n].id == n`; an entry means something only when `online` contains `n`.
    nodes: [Node; MAX_NODES],
    /// Node of each CPU, or [`NO_NODE`].
    cpus: [u8; MAX_CPUS],
    online: NodeSet,
    /// A subset of `online`: the nodes with `has_memory`.
    memory: NodeSet,
    ignored: u64,
}

impl Topology {
    /// A topology without nodes, for a static; fill it with [`read_from`](Self::read_from). Until
    /// then every set it answers with is empty.
    ///
    /// ```
    /// use pinned_alloc::os::topology::Topology;
    ///
    /// assert_eq!(Topology::empty().len(), 0);
    /// ```
    pub const fn empty() -> Self {
        let mut nodes = [const { Node::unknown(0) }; MAX_NODES];
        let mut id = 0;
        while id < MAX_NODES {
            nodes[id].id = id as u8;
            id += 1;
        }
        Self {
            nodes,
            cpus: [NO_NODE; MAX_CPUS],
            online: NodeSet::empty(),
            memory: NodeSet::empty(),
            ignored: 0,
        }
    }

    /// Reads the topology below `root`, normally `c"/sys"`. About 10 KiB: where the stack is
    /// scarce use [`read_from`](Self::read_from).
    ///
    /// ```
    /// use pinned_alloc::os::topology::Topology;
    ///
    /// let t = Topology::read(c"/sys");
    /// assert!(!t.is_empty());
    /// ```
    pub fn read(root: &CStr) -> Self {
        let mut topology = Self::empty();
        topology.read_from(root);
        topology
    }

    /// Reads the topology below `root`, normally `c"/sys"`, over what was here before.
    ///
    /// Does not fail: without a usable `online` file (no NUMA in the kernel, no `/sys`) there is
    /// one node 0 that owns every CPU, and what cannot be read stays unknown. Does not allocate;
    /// opens about ten files a node (80 microseconds for one).
    ///
    /// ```
    /// use pinned_alloc::os::topology::Topology;
    ///
    /// let mut t = Topology::empty();
    /// t.read_from(c"/no/such/directory");
    /// assert_eq!(t.len(), 1); // without figures there is one node
    /// ```
    pub fn read_from(&mut self, root: &CStr) {
        self.online = NodeSet::empty();
        self.memory = NodeSet::empty();
        self.ignored = 0;
        self.cpus.fill(NO_NODE);
        for (id, node) in (0..).zip(&mut self.nodes) {
            *node = Node::unknown(id);
        }

        let dir = Dir::new(root);
        let listed = dir.list(b"online").unwrap_or_default();
        self.ignored = listed.ignored;
        let invented = listed.set.is_empty();
        self.online = if invented { NodeSet::from_bits(1) } else { listed.set };
        // `distance` has one column for each online node, those that are left out here last.
        let columns = u64::try_from(listed.set.len()).unwrap_or(0).saturating_add(listed.ignored);

        for id in self.online {
            let Some(node) = self.nodes.get_mut(usize::from(id)) else {
                continue;
            };
            dir.read_node(node, self.online, columns);
            node.has_cpus = dir.read_cpus(id, &mut self.cpus).unwrap_or(invented);
        }
        if invented && self.cpus.iter().all(|&n| n == NO_NODE) {
            self.cpus.fill(0);
        }

        // Without a usable has_memory: the nodes known to have some; without those, all.
        let mut memory = dir.list(b"has_memory").unwrap_or_default().set;
        memory = memory.intersection(self.online);
        if memory.is_empty() {
            memory = self.nodes().filter(|n| n.memory_bytes > 0).map(|n| n.id).collect();
        }
        self.memory = if memory.is_empty() { self.online } else { memory };
        for (id, node) in (0..).zip(&mut self.nodes) {
            node.has_memory = self.memory.contains(id);
        }
    }

    /// The nodes that are online, ascending.
    ///
    /// ```
    /// use pinned_alloc::os::topology::Topology;
    ///
    /// let t = Topology::read(c"/sys");
    /// assert_eq!(t.nodes().count(), t.len());
    /// ```
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.online.iter().filter_map(|id| self.node(id))
    }

    /// Node `id`; `None` when it is not online.
    ///
    /// ```
    /// use pinned_alloc::os::topology::Topology;
    ///
    /// let t = Topology::read(c"/sys");
    /// assert!(t.node(63).is_none_or(|n| n.id == 63));
    /// ```
    pub fn node(&self, id: u8) -> Option<&Node> {
        if !self.online.contains(id) {
            return None;
        }
        self.nodes.get(usize::from(id))
    }

    /// How many nodes are online and below 64.
    ///
    /// ```
    /// use pinned_alloc::os::topology::Topology;
    ///
    /// let t = Topology::read(c"/sys");
    /// assert!((1..=64).contains(&t.len()));
    /// ```
    pub const fn len(&self) -> usize {
        self.online.len()
    }

    /// Whether there is no node, which only [`empty`](Self::empty) can say.
    ///
    /// ```
    /// use pinned_alloc::os::topology::Topology;
    ///
    /// assert!(Topology::empty().is_empty());
    /// ```
    pub const fn is_empty(&self) -> bool {
        self.online.is_empty()
    }

    /// How many online nodes were left out because their number is 64 or more.
    ///
    /// ```
    /// use pinned_alloc::os::topology::Topology;
    ///
    /// let t = Topology::read(c"/sys");
    /// println!("{} nodes above 63", t.ignored_nodes());
    /// ```
    pub const fn ignored_nodes(&self) -> u64 {
        self.ignored
    }

    /// The nodes that are online.
    ///
    /// ```
    /// use pinned_alloc::os::topology::Topology;
    ///
    /// let t = Topology::read(c"/sys");
    /// assert_eq!(t.online_nodes().len(), t.len());
    /// ```
    pub const fn online_nodes(&self) -> NodeSet {
        self.online
    }

    /// The nodes that have memory.
    ///
    /// ```
    /// use pinned_alloc::os::topology::Topology;
    ///
    /// let t = Topology::read(c"/sys");
    /// assert!(!t.memory_nodes().is_empty());
    /// ```
    pub const fn memory_nodes(&self) -> NodeSet {
        self.memory
    }

    /// The node of `cpu` (as `sched_getcpu(3)` numbers it); `None` when no node lists it, or from
    /// [`MAX_CPUS`] on.
    ///
    /// ```
    /// use pinned_alloc::os::topology::Topology;
    ///
    /// let t = Topology::read(c"/sys");
    /// assert!(t.cpu_to_node(0).is_some());
    /// ```
    pub fn cpu_to_node(&self, cpu: usize) -> Option<u8> {
        self.cpus.get(cpu).copied().filter(|&n| n != NO_NODE)
    }

    /// The nodes for `omp_high_bw_mem_space`: those of `allowed` that have memory and the highest
    /// read bandwidth, all of them on a tie.
    ///
    /// A node without the figure does not win against one that has it. When none has it (no HMAT)
    /// there is nothing to tell them apart and all allowed memory nodes are returned.
    ///
    /// ```
    /// use pinned_alloc::os::topology::Topology;
    ///
    /// let t = Topology::read(c"/sys");
    /// println!("fastest: {}", t.high_bandwidth(t.memory_nodes()));
    /// ```
    pub fn high_bandwidth(&self, allowed: NodeSet) -> NodeSet {
        self.best(allowed, |n| n.read_bandwidth_mib)
    }

    /// The nodes for `omp_low_lat_mem_space`: those of `allowed` that have memory and the lowest
    /// read latency, all of them on a tie; without figures as in
    /// [`high_bandwidth`](Self::high_bandwidth).
    ///
    /// The figure is that of the best initiator. On a machine of equal sockets all DDR nodes tie:
    /// combine with [`nearest`](Self::nearest) for the one next to the thread.
    ///
    /// ```
    /// use pinned_alloc::os::topology::Topology;
    ///
    /// let t = Topology::read(c"/sys");
    /// println!("nearest in time: {}", t.low_latency(t.memory_nodes()));
    /// ```
    pub fn low_latency(&self, allowed: NodeSet) -> NodeSet {
        self.best(allowed, |n| n.read_latency_ns.map(|ns| u64::MAX - ns))
    }

    /// The nodes for `omp_large_cap_mem_space`: those of `allowed` that have memory and the
    /// largest `MemTotal`, and those that lack at most a sixteenth of it or 64 MiB (the larger of
    /// the two, but never more than a quarter).
    ///
    /// The slack is there because equal nodes never report equal totals: firmware, kernel image,
    /// early page tables and `crashkernel=` are taken from some nodes only (an emulated machine of
    /// four times 256 MiB lost 33 MiB of node 0). Memory modules come in larger steps, so a real
    /// difference is not hidden. Unknown totals do not win against known ones; when none is known
    /// all allowed memory nodes are returned.
    ///
    /// ```
    /// use pinned_alloc::os::topology::Topology;
    ///
    /// let t = Topology::read(c"/sys");
    /// println!("largest: {}", t.large_capacity(t.memory_nodes()));
    /// ```
    pub fn large_capacity(&self, allowed: NodeSet) -> NodeSet {
        const FIXED: u64 = 64 << 20;
        let candidates = self.memory.intersection(allowed);
        let total = |id| self.node(id).map_or(0, |n| n.memory_bytes);
        let largest = candidates.iter().map(total).max().unwrap_or(0);
        let slack = (largest / 16).max(FIXED.min(largest / 4));
        let enough = largest.saturating_sub(slack);
        candidates.iter().filter(|&id| total(id) >= enough).collect()
    }

    /// The member of `among` with the smallest distance from `from`: `from` itself if it is a
    /// member, the lower number on a tie. Members that are not online are passed over, members at
    /// an unknown distance come last. `None` when no member is online.
    ///
    /// Memory is not looked at: intersect `among` with [`memory_nodes`](Self::memory_nodes).
    ///
    /// ```
    /// use pinned_alloc::os::topology::{NodeSet, Topology};
    ///
    /// let t = Topology::read(c"/sys");
    /// assert_eq!(t.nearest(0, NodeSet::empty()), None);
    /// ```
    pub fn nearest(&self, from: u8, among: NodeSet) -> Option<u8> {
        let members = among.intersection(self.online);
        if members.contains(from) {
            return Some(from);
        }
        let origin = self.node(from);
        members.iter().min_by_key(|&to| origin.and_then(|n| n.distance_to(to)).map_or(256, u16::from))
    }

    /// The allowed memory nodes with the largest `merit`, `None` being less than any.
    fn best(&self, allowed: NodeSet, merit: impl Fn(&Node) -> Option<u64>) -> NodeSet {
        let candidates = self.memory.intersection(allowed);
        let merit = |id| self.node(id).and_then(&merit);
        let best = candidates.iter().map(merit).max().flatten();
        candidates.iter().filter(|&id| merit(id) == best).collect()
    }
}

impl Default for Topology {
    fn default() -> Self {
        Self::empty()
    }
}

/// The nodes that are online; absent ones and the table of CPUs are left out.
impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Nodes<'a>(&'a Topology);
        impl fmt::Debug for Nodes<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_list().entries(self.0.nodes()).finish()
            }
        }
        f.debug_struct("Topology")
            .field("nodes", &Nodes(self))
            .field("memory", &self.memory)
            .field("ignored", &self.ignored)
            .finish_non_exhaustive()
    }
}

/// A kernel list of nodes, taken apart by [`parse_node_list`].
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct NodeList {
    /// The nodes 0 to 63 of the list.
    pub set: NodeSet,
    /// How many numbers of the list are larger; saturating.
    pub ignored: u64,
}

/// Parses a list of nodes such as `0-3,7`; `None` when any part of it is not one.
#[doc(hidden)]
pub fn parse_node_list(text: &[u8]) -> Option<NodeList> {
    const LIMIT: u64 = MAX_NODES as u64;
    let mut list = NodeList::default();
    parse_list(text, |low, high| {
        for node in low..LIMIT.min(high.saturating_add(1)) {
            list.set.insert(node as u8);
        }
        if high >= LIMIT {
            let count = (high - low.max(LIMIT)).saturating_add(1);
            list.ignored = list.ignored.saturating_add(count);
        }
    })?;
    Some(list)
}

/// Parses a `distance` file: `columns` figures, the first of them for the nodes of `online` in
/// ascending order. `None` when the count differs or a figure is not in 1 to 255.
#[doc(hidden)]
pub fn parse_distances(text: &[u8], online: NodeSet, columns: u64) -> Option<[u8; MAX_NODES]> {
    let mut row = [0; MAX_NODES];
    let mut ids = online.iter();
    let mut seen = 0u64;
    for word in text.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty()) {
        let figure = u8::try_from(parse_u64(word)?).ok().filter(|&d| d != 0)?;
        if let Some(slot) = ids.next().and_then(|id| row.get_mut(usize::from(id))) {
            *slot = figure;
        }
        seen = seen.saturating_add(1);
    }
    (seen == columns).then_some(row)
}

/// Parses a line of a node's `meminfo`, `Node 0 MemTotal:   4941560 kB`, into bytes; `None` for
/// the other lines.
#[doc(hidden)]
pub fn parse_mem_total(line: &[u8]) -> Option<u64> {
    const NAME: &[u8] = b"MemTotal:";
    let at = line.windows(NAME.len()).position(|w| w == NAME)?;
    parse_kib(line.get(at.checked_add(NAME.len())?..)?)
}

/// The directory `devices/system/node` below a root.
struct Dir {
    /// `None` when the root's name is too long.
    path: Option<StackPath<256>>,
}

impl Dir {
    fn new(root: &CStr) -> Self {
        let mut path = StackPath::new();
        let fits = path.push(root.to_bytes()).and_then(|()| path.push(b"/devices/system/node"));
        Self { path: fits.map(|()| path) }
    }

    /// Calls `read` with the path of `name` in the directory of node `node`, or in the one above.
    fn with<R>(&self, node: Option<u8>, name: &[u8], read: impl FnOnce(&CStr) -> Option<R>) -> Option<R> {
        let mut path = self.path?;
        if let Some(id) = node {
            path.push(b"/node")?;
            path.push_decimal(u64::from(id))?;
        }
        path.push(b"/")?;
        path.push(name)?;
        read(path.as_cstr())
    }

    /// The set of nodes in the file `name`.
    fn list(&self, name: &[u8]) -> Option<NodeList> {
        self.with(None, name, |path| {
            let mut buf = [0; 4096];
            parse_node_list(read_list(path, &mut buf)?)
        })
    }

    /// Everything about `node` but its CPUs and whether it has memory.
    fn read_node(&self, node: &mut Node, online: NodeSet, columns: u64) {
        let id = Some(node.id);
        if let Some(row) = self.with(id, b"distance", |path| {
            let mut buf = [0; 4096];
            let n = read_into(path, &mut buf).ok()?;
            parse_distances(buf.get(..n)?, online, columns)
        }) {
            node.distance = row;
        }
        node.memory_bytes = self
            .with(id, b"meminfo", |path| {
                let mut total = None;
                for_each_line(&[path], |line| match parse_mem_total(line) {
                    None => ControlFlow::Continue(()),
                    some => {
                        total = some;
                        ControlFlow::Break(())
                    }
                })
                .ok()?;
                total
            })
            .unwrap_or(0);
        // All four files exist as soon as one figure is known; the unknown ones read 0.
        let figure = |name| self.with(id, name, read_u64).filter(|&n| n != 0);
        node.read_bandwidth_mib = figure(b"access0/initiators/read_bandwidth");
        node.write_bandwidth_mib = figure(b"access0/initiators/write_bandwidth");
        node.read_latency_ns = figure(b"access0/initiators/read_latency");
        node.write_latency_ns = figure(b"access0/initiators/write_latency");
    }

    /// Enters the CPUs of node `id` into `cpus`; says whether it has any, `None` when unknown.
    fn read_cpus(&self, id: u8, cpus: &mut [u8; MAX_CPUS]) -> Option<bool> {
        self.with(Some(id), b"cpulist", |path| {
            let mut buf = [0; 4096];
            let mut any = false;
            parse_list(read_list(path, &mut buf)?, |low, high| {
                any = true;
                // Both ends are cut to the table; `low` past its end leaves nothing.
                let index = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
                let end = index(high).saturating_add(1).min(MAX_CPUS);
                if let Some(part) = cpus.get_mut(index(low)..end) {
                    part.fill(id);
                }
            })?;
            Some(any)
        })
    }
}

/// Reads a list file into `buf`. Of one that does not fit, the part before the last comma that
/// does: lists ascend, and the first 4 KiB of one go beyond CPU 1023 (512 items of 5 bytes).
fn read_list<'b>(path: &CStr, buf: &'b mut [u8; 4096]) -> Option<&'b [u8]> {
    let n = read_into(path, buf).ok()?;
    let text = buf.get(..n)?;
    if n < buf.len() {
        return Some(text);
    }
    let comma = text.iter().rposition(|&b| b == b',')?;
    text.get(..comma)
}

#[cfg(test)]
mod tests;
