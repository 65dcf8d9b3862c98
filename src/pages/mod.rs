//! Spans of pages and what is true of them.
//!
//! A [`Span`] is a run of address space that belongs to one user of this layer (one large block, or one chunk of
//! slabs). Its record lives outside its pages and says how it was mapped, locked and placed; everything done to
//! it later asks the record and never guesses.
//!
//! ```text
//!  base        start                    start+len   start+locked  start+opened        base+reserved
//!   |  slack     |  usable, locked if pinned |  locked ahead |  open, not locked |  reserved      |
//!   '-- no access (alignment) ---------------'---------------'-------------------'-- no access ---'
//!                 \____ segment 0 ____/\_ segment 1 _/          mappings the kernel will not merge
//! ```
//!
//! - [`account`]: exact bytes locked and mapped by this crate, process-wide.
//! - [`cache`]: freed spans kept for reuse, bounded in number and bytes.
//! - [`meta`]: memory for the records, never the user's and never locked.
//! - [`map`]: from an address to its record.

pub(crate) mod account;
pub(crate) mod cache;
mod error;
pub(crate) mod map;
pub(crate) mod meta;
mod resize;
mod span;
mod spec;

pub use error::{Cause, Cure, PagesError};
pub(crate) use resize::NoGrowth;
pub(crate) use span::Span;
pub use spec::{ForkPolicy, HugePages};
pub(crate) use spec::{Part, Place, SpanSpec};

/// Rounds up to whole pages; `None` on overflow.
pub(crate) fn page_up(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(crate::os::page_size())
}
