//! NUMA: memory policies by number (no libnuma), and where the caller runs.

use super::call::{Call, OsError, injected};
use super::topology::{NodeSet, Topology};
use std::sync::atomic::{AtomicU8, Ordering};

const MPOL_PREFERRED: i32 = 1;
const MPOL_INTERLEAVE: i32 = 3;
const MPOL_PREFERRED_MANY: i32 = 5; // Linux 5.15
const MPOL_F_MEMS_ALLOWED: u64 = 4;
/// `maxnode` of a one-word mask. The kernel drops one bit, so that 65 says "64 nodes".
const MAXNODE: usize = 65;

/// Placement of a range that has not been populated yet: `mode` over `nodes`.
fn mbind(addr: usize, len: usize, mode: i32, nodes: NodeSet) -> Result<(), OsError> {
    injected(Call::Mbind, addr, len)?;
    let mask: [u64; 2] = [nodes.bits(), 0];
    // SAFETY: the mask outlives the call and is as long as MAXNODE says; the range is the caller's, and a
    // policy changes where pages come from, never what is in them.
    let r = unsafe { libc::syscall(libc::SYS_mbind, addr, len, mode, mask.as_ptr(), MAXNODE, 0) };
    if r == 0 { Ok(()) } else { Err(OsError::last(Call::Mbind, addr, len)) }
}

/// Prefers `nodes`, and spills elsewhere when they are full. `nodes` is not empty.
pub(crate) fn prefer(addr: usize, len: usize, nodes: NodeSet, near: u8) -> Result<(), OsError> {
    if nodes.len() == 1 {
        return mbind(addr, len, MPOL_PREFERRED, nodes);
    }
    match mbind(addr, len, MPOL_PREFERRED_MANY, nodes) {
        Err(e) if e.errno == libc::EINVAL => {
            // Before 5.15 one node is all that can be preferred: the nearest of them.
            let one = topology().nearest(near, nodes).or(nodes.first()).unwrap_or(0);
            mbind(addr, len, MPOL_PREFERRED, NodeSet::single(one).unwrap_or(nodes))
        }
        r => r,
    }
}

/// Deals pages over `nodes` round robin.
pub(crate) fn interleave(addr: usize, len: usize, nodes: NodeSet) -> Result<(), OsError> {
    mbind(addr, len, MPOL_INTERLEAVE, nodes)
}

/// The nodes this process may take memory from (cpuset), or `None` where the kernel has no NUMA.
fn mems_allowed() -> Option<NodeSet> {
    let mut mask = [0u64; 16];
    // SAFETY: the mask has 1024 bits, as said; a null address with MEMS_ALLOWED asks for the task's set.
    let r = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            0usize,
            mask.as_mut_ptr(),
            1024usize,
            0usize,
            MPOL_F_MEMS_ALLOWED,
        )
    };
    (r == 0).then(|| NodeSet::from_bits(mask[0]))
}

/// The node of the CPU the caller runs on right now; 0 where the kernel does not say.
pub(crate) fn here() -> u8 {
    // SAFETY: reads the CPU number through the vDSO.
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu).ok().and_then(|c| topology().cpu_to_node(c as usize)).unwrap_or(0)
}

/// The nodes with memory that this process may use; never empty.
pub(crate) fn allowed() -> NodeSet {
    let all = topology().memory_nodes();
    let mine = mems_allowed().map_or(all, |m| m.intersection(all));
    if mine.is_empty() { all } else { mine }
}

/// Whether there is more than one node to choose from. False is the answer of most machines, and cheap.
pub(crate) fn several() -> bool {
    topology().memory_nodes().len() > 1
}

const EMPTY: u8 = 0;
const READING: u8 = 1;
const READY: u8 = 2;

struct Shared(core::cell::UnsafeCell<Topology>);
// SAFETY: written once, by the thread that moved STATE from EMPTY to READING, and only read after READY, which
// is published with Release and seen with Acquire.
unsafe impl Sync for Shared {}
static SHARED: Shared = Shared(core::cell::UnsafeCell::new(Topology::empty()));
static STATE: AtomicU8 = AtomicU8::new(EMPTY);

/// The machine's topology, read from `/sys` once.
pub(crate) fn topology() -> &'static Topology {
    if STATE.load(Ordering::Acquire) != READY {
        read_once();
    }
    // SAFETY: READY was seen; from then on nobody writes.
    unsafe { &*SHARED.0.get() }
}

#[cold]
fn read_once() {
    if STATE.compare_exchange(EMPTY, READING, Ordering::Acquire, Ordering::Acquire).is_ok() {
        // SAFETY: this thread alone moved EMPTY to READING, so nobody else reads or writes the cell.
        unsafe { (*SHARED.0.get()).read_from(c"/sys") };
        STATE.store(READY, Ordering::Release);
        return;
    }
    while STATE.load(Ordering::Acquire) != READY {
        std::thread::yield_now();
    }
}

/// In the child of a fork: a reader that does not exist here must not be waited for.
pub(crate) fn after_fork() {
    let _ = STATE.compare_exchange(READING, EMPTY, Ordering::AcqRel, Ordering::Relaxed);
}
