//! The OpenMP model for the host: memory spaces, traits, allocators, the fallback chain, partitions.
//!
//! ```text
//!   handle or PinnedAlloc ──> Allocator: traits resolved, pool, statistics
//!                                │  request: charge the pool, choose the heap
//!                                ▼
//!                              Heap  ── fails ──> fallback: next allocator, NULL, or the end of the program
//! ```
//!
//! - [`traits`]: every trait of 5.0 to 6.0, typed and raw.
//! - [`space`]: memory spaces, and which nodes of the machine each stands for.
//! - [`partition`]: memory partitioners and partitions of 6.0.
//! - [`handle`]: handles are numbers that are checked, never pointers that are trusted.
//! - [`routines`]: the routines of the specification on those handles.
//!
//! Fallback is decided here and nowhere below.

pub(crate) mod allocator;
mod default;
pub mod env;
mod error;
pub mod handle;
pub(crate) mod last;
pub mod partition;
mod policy;
pub(crate) mod pool;
mod realloc;
pub mod routines;
pub mod space;
pub(crate) mod table;
pub mod traits;

pub use error::{Error, TraitError};
pub use handle::AllocatorHandle;
pub use last::last_error;
pub use policy::{Policy, ReallocPolicy, Reserve};
pub use space::MemSpace;
pub use traits::Traits;

pub(crate) use realloc::{Resize, reallocate};
