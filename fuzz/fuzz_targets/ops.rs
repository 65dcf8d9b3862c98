//! Programs of operations over allocators with any traits, against a model.
//!
//! The first byte says how strict the run is: plainly, with a lock limit that changes, or with system calls that
//! fail. Then comes an operation after the other. The oracle knows every allocator, pool and block ([`model`]), so
//! it says who must serve, who must not, and after each operation: no two blocks overlap, alignment and contents
//! hold, pools count every byte, `Fixed` never moves, a failed call changes nothing, any address is answered. At
//! the end of a run nothing is left: no block, no locked byte, no mapping.
#![no_main]

#[path = "ops/ground.rs"]
mod ground;
#[path = "ops/machine.rs"]
mod machine;
#[path = "ops/model.rs"]
mod model;
#[path = "ops/resize.rs"]
mod resize;
#[path = "ops/rest.rs"]
mod rest;

use libfuzzer_sys::fuzz_target;
use machine::Machine;
use pinned_alloc_fuzz::Bytes;

fuzz_target!(init: ground::give_up_ipc_lock(), |data: &[u8]| {
    let mut b = Bytes(data);
    let mut m = Machine::new(b.byte() % 4);
    for _ in 0..300 {
        if b.is_empty() {
            break;
        }
        m.step(&mut b);
        m.check_totals();
    }
    m.finish();
});
