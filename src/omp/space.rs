//! Memory spaces, and which nodes of this machine each one stands for.
//!
//! A space *prefers* its nodes: when they are full, pages come from elsewhere, as OpenMP allows ("which storage
//! really backs it is implementation defined") and as the kernel's binding policy does not (it kills the process
//! instead). On a machine with one node, or one kind of memory, every space is the default one.
//!
//! | space | nodes (ACPI HMAT as the kernel reports it in `/sys/devices/system/node`) |
//! |---|---|
//! | default, const, null | no preference: the node of the thread that asks |
//! | high_bw | those with the highest read bandwidth |
//! | low_lat | those with the lowest read latency |
//! | large_cap | those with the most memory |
//!
//! ```
//! use pinned_alloc::{MemSpace, PinnedAlloc};
//!
//! println!("high bandwidth: nodes {}", MemSpace::HighBw.nodes());
//! let fast = PinnedAlloc::builder().mem_space(MemSpace::HighBw).build()?;
//! assert_eq!(fast.mem_space(), MemSpace::HighBw);
//! # Ok::<(), pinned_alloc::Error>(())
//! ```

use crate::os::numa;
use crate::os::topology::NodeSet;

/// A memory space (`omp_memspace_handle_t`), OpenMP 6.0 section 8.1.
///
/// ```
/// use pinned_alloc::MemSpace;
///
/// for space in [MemSpace::Default, MemSpace::HighBw, MemSpace::LowLat, MemSpace::LargeCap] {
///     println!("{space:?}: nodes {}", space.nodes());
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum MemSpace {
    /// `omp_default_mem_space`.
    #[default]
    Default,
    /// `omp_large_cap_mem_space`.
    LargeCap,
    /// `omp_const_mem_space`. What is written there is the program's affair; the memory is the default space's.
    Const,
    /// `omp_high_bw_mem_space`.
    HighBw,
    /// `omp_low_lat_mem_space`.
    LowLat,
    /// `omp_null_mem_space` (6.0): the default space.
    Null,
    /// These nodes, preferred: a sub-space. Nodes without memory, or outside the process's cpuset, do not count.
    Nodes(NodeSet),
}

impl MemSpace {
    /// From the numbers that libgomp's and LLVM's headers share: 1 to 4, and 0, 99 and -1 for the default space.
    ///
    /// ```
    /// use pinned_alloc::MemSpace;
    ///
    /// assert_eq!(MemSpace::from_raw(3), Some(MemSpace::HighBw));
    /// assert_eq!(MemSpace::from_raw(50), None);
    /// ```
    #[must_use]
    pub fn from_raw(raw: usize) -> Option<Self> {
        Some(match raw {
            0 | 99 | usize::MAX => MemSpace::Default,
            1 => MemSpace::LargeCap,
            2 => MemSpace::Const,
            3 => MemSpace::HighBw,
            4 => MemSpace::LowLat,
            _ => return None,
        })
    }

    /// The nodes this space prefers, on this machine and for this process; all of them where there is nothing to
    /// choose. Never empty.
    ///
    /// ```
    /// use pinned_alloc::MemSpace;
    ///
    /// assert!(!MemSpace::LargeCap.nodes().is_empty());
    /// ```
    #[must_use]
    pub fn nodes(self) -> NodeSet {
        let allowed = numa::allowed();
        let t = numa::topology();
        let n = match self {
            MemSpace::Default | MemSpace::Const | MemSpace::Null => allowed,
            MemSpace::LargeCap => t.large_capacity(allowed),
            MemSpace::HighBw => t.high_bandwidth(allowed),
            MemSpace::LowLat => t.low_latency(allowed),
            MemSpace::Nodes(n) => n.intersection(allowed),
        };
        if n.is_empty() { allowed } else { n }
    }

    /// The storage resources of the space in the order partitions number them (`omp_get_memspace_num_resources`).
    ///
    /// ```
    /// use pinned_alloc::MemSpace;
    ///
    /// assert_eq!(MemSpace::Default.num_resources(), MemSpace::Default.nodes().len());
    /// ```
    #[must_use]
    pub fn num_resources(self) -> usize {
        self.nodes().len()
    }

    /// The page size of the space in bytes (`omp_get_memspace_pagesize`).
    ///
    /// ```
    /// use pinned_alloc::{MemSpace, os::page_size};
    ///
    /// assert_eq!(MemSpace::Default.page_size(), page_size());
    /// ```
    #[must_use]
    pub fn page_size(self) -> usize {
        crate::os::page_size()
    }

    /// Whether the space leaves the choice of nodes to the system.
    pub(crate) fn is_open(self) -> bool {
        matches!(self, MemSpace::Default | MemSpace::Const | MemSpace::Null)
            || !numa::several()
            || self.nodes() == numa::allowed()
    }

    /// Resource `i` of the space: a node.
    pub(crate) fn resource(self, i: usize) -> Option<u8> {
        self.nodes().iter().nth(i)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_numbering_of_the_default_space() {
        for raw in [0, 99, usize::MAX] {
            assert_eq!(MemSpace::from_raw(raw), Some(MemSpace::Default));
        }
        for raw in [5, 98, 100, 101, 102, 200, 1 << 40] {
            assert_eq!(MemSpace::from_raw(raw), None, "{raw}");
        }
    }

    #[test]
    fn a_space_has_nodes() {
        for s in [MemSpace::Default, MemSpace::LargeCap, MemSpace::Const, MemSpace::HighBw, MemSpace::LowLat]
        {
            assert!(!s.nodes().is_empty());
            assert!(s.resource(0).is_some() && s.resource(64).is_none());
        }
        assert!(!MemSpace::Nodes(NodeSet::empty()).nodes().is_empty());
    }
}
