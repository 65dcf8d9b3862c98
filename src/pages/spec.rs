//! What a span has to be: the demands that two users must share before one may get the other's span.

use crate::os::topology::NodeSet;

/// What a child process gets of an allocator's memory after `fork` (`man 2 madvise`).
///
/// Locks are never inherited (`man 2 mlock`): whatever is chosen, nothing is pinned in the child until it locks
/// for itself.
///
/// ```
/// use pinned_alloc::{ForkPolicy, PinnedAlloc};
///
/// let alloc = PinnedAlloc::builder().fork_policy(ForkPolicy::WipeOnFork).build()?;
/// assert_eq!(alloc.policy().fork, ForkPolicy::WipeOnFork);
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ForkPolicy {
    /// The child reads and writes its own copy, which is reported as not pinned there. The default.
    ///
    /// The first write of the parent to each page after the fork moves that page to another frame (copy on
    /// write); it stays resident and locked.
    #[default]
    Keep,
    /// The child has no such memory (`MADV_DONTFORK`): touching it there is a fault, freeing it does nothing.
    /// Its addresses stay unused there. The parent's frames stay where they are.
    DontFork,
    /// The child finds zeros (`MADV_WIPEONFORK`). The parent's frames stay where they are.
    WipeOnFork,
}

/// Use of huge pages for blocks of 2 MiB and more.
///
/// ```
/// use pinned_alloc::{HugePages, PinnedAlloc};
///
/// let alloc = PinnedAlloc::builder().huge_pages(HugePages::Never).build()?;
/// assert_eq!(alloc.policy().huge_pages, HugePages::Never);
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HugePages {
    /// Transparent huge pages where the kernel allows them (`MADV_HUGEPAGE`), else 4 KiB pages. The default.
    #[default]
    Auto,
    /// 4 KiB pages only (`MADV_NOHUGEPAGE`).
    Never,
}

/// Where the pages of a span come from. On a machine with one node it is always `Any`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The node of the thread that asks.
    Any,
    /// These nodes while they have room, any other after that.
    Prefer(NodeSet),
    /// Page by page over these nodes.
    Interleave(NodeSet),
    /// Parts of so many bytes (whole pages), dealt over these nodes.
    Striped(NodeSet, usize),
    /// One part a node.
    Blocked(NodeSet),
    /// As a list of parts says that comes with the request.
    Listed,
}

impl Place {
    /// Whether a span of it must be cut for its size, so that it cannot be shared or reused for another.
    pub(crate) fn by_size(self) -> bool {
        matches!(self, Place::Striped(..) | Place::Blocked(_) | Place::Listed)
    }
}

/// One part of a partitioned span: so many bytes on that node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) node: u8,
    pub(crate) len: usize,
}

/// Demands on a span. Two spans of equal demands are interchangeable, unless [`Place::by_size`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpanSpec {
    pub(crate) pinned: bool,
    pub(crate) fork: ForkPolicy,
    /// Part of core dumps or not (`MADV_DONTDUMP`).
    pub(crate) dump: bool,
    pub(crate) huge: HugePages,
    pub(crate) place: Place,
    /// Threads that populate 64 MiB and more at once; 1 is the caller alone.
    pub(crate) threads: u8,
}

impl SpanSpec {
    /// Ordinary memory.
    pub(crate) const PLAIN: SpanSpec = SpanSpec {
        pinned: false,
        fork: ForkPolicy::Keep,
        dump: true,
        huge: HugePages::Auto,
        place: Place::Any,
        threads: 1,
    };
}
