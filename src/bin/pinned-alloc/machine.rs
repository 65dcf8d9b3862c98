//! What this machine and this process have: limits, pages, nodes, a CUDA driver.

use crate::report::{bytes, heading};
use pinned_alloc::MemSpace;
use pinned_alloc::os::limits::{self, Limits, Thp};
use pinned_alloc::os::topology::Topology;
use serde::Serialize;
use std::io::{self, Write};

#[derive(Debug, Serialize)]
struct Node {
    id: u8,
    memory: u64,
    cpus: bool,
    read_bandwidth_mib_s: Option<u64>,
    read_latency_ns: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Pool {
    page_size: u64,
    total: u64,
    free: u64,
}

/// What `check` reports of the machine.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    memlock_soft: Option<u64>,
    memlock_hard: Option<u64>,
    vm_locked: u64,
    headroom: Option<u64>,
    cap_ipc_lock: bool,
    page_size: usize,
    transparent_huge_pages: &'static str,
    hugetlb_pools: Vec<Pool>,
    mappings: Option<u64>,
    max_map_count: Option<u64>,
    overcommit: Option<u8>,
    cgroup_limit: Option<u64>,
    nodes: Vec<Node>,
    spaces: Vec<(&'static str, String)>,
    cuda_driver: bool,
}

/// Whether the CUDA driver can be loaded. Nothing of it is called.
fn cuda_driver() -> bool {
    // SAFETY: loading a library runs its constructors; this one is loaded by every CUDA program. No symbol is used.
    unsafe {
        let h = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL);
        if h.is_null() {
            return false;
        }
        libc::dlclose(h);
        true
    }
}

impl Machine {
    pub(crate) fn examine() -> Self {
        let l = Limits::read();
        let t = Topology::read(c"/sys");
        let spaces = [
            ("default", MemSpace::Default),
            ("large_cap", MemSpace::LargeCap),
            ("const", MemSpace::Const),
            ("high_bw", MemSpace::HighBw),
            ("low_lat", MemSpace::LowLat),
        ];
        Machine {
            memlock_soft: l.memlock_soft,
            memlock_hard: l.memlock_hard,
            vm_locked: l.vm_locked,
            headroom: l.headroom(),
            cap_ipc_lock: l.has_ipc_lock,
            page_size: l.page_size,
            transparent_huge_pages: match limits::thp_mode() {
                Thp::Always => "always",
                Thp::Madvise => "madvise",
                Thp::Never => "never",
                Thp::Unknown => "unknown",
            },
            hugetlb_pools: limits::hugetlb_pools()
                .as_slice()
                .iter()
                .map(|p| Pool { page_size: p.page_size, total: p.total, free: p.free })
                .collect(),
            mappings: limits::map_count(),
            max_map_count: limits::max_map_count(),
            overcommit: limits::overcommit_memory(),
            cgroup_limit: limits::cgroup_memory().and_then(|c| c.limit),
            nodes: t
                .nodes()
                .map(|n| Node {
                    id: n.id,
                    memory: n.memory_bytes,
                    cpus: n.has_cpus,
                    read_bandwidth_mib_s: n.read_bandwidth_mib,
                    read_latency_ns: n.read_latency_ns,
                })
                .collect(),
            spaces: spaces.map(|(name, s)| (name, s.nodes().to_string())).to_vec(),
            cuda_driver: cuda_driver(),
        }
    }

    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let limit = |l: Option<u64>| l.map_or("unlimited".to_owned(), bytes);
        heading(out, "this process")?;
        let row = |out: &mut dyn Write, name: &str, text: String| writeln!(out, "  {name:<22} {text}");
        let soft_hard = format!("{} (hard limit {})", limit(self.memlock_soft), limit(self.memlock_hard));
        row(out, "RLIMIT_MEMLOCK", soft_hard)?;
        row(out, "locked now", bytes(self.vm_locked))?;
        let room = match (self.cap_ipc_lock, self.headroom) {
            (true, _) => "unlimited: CAP_IPC_LOCK is held".to_owned(),
            (false, room) => format!("{}, no CAP_IPC_LOCK", limit(room)),
        };
        row(out, "may still be locked", room)?;
        if let (Some(n), Some(max)) = (self.mappings, self.max_map_count) {
            row(out, "mappings", format!("{n} of {max} (vm.max_map_count)"))?;
        }
        let of_cgroup = self.cgroup_limit.map_or("none".to_owned(), bytes);
        row(out, "memory cgroup limit", of_cgroup)?;
        heading(out, "this machine")?;
        row(
            out,
            "pages",
            format!("{}; huge pages: {}", bytes(self.page_size as u64), self.transparent_huge_pages),
        )?;
        for p in &self.hugetlb_pools {
            let text = format!("{} pages: {} free of {}", bytes(p.page_size), p.free, p.total);
            row(out, "hugetlb pool", text)?;
        }
        if let Some(o) = self.overcommit {
            row(
                out,
                "overcommit",
                ["0, heuristic", "1, always", "2, strict"].get(o as usize).unwrap_or(&"?").to_string(),
            )?;
        }
        for n in &self.nodes {
            let figure = |f: Option<u64>, unit| f.map_or(String::new(), |v| format!(", {v} {unit}"));
            let memory = if n.memory == 0 { "memory unknown".to_owned() } else { bytes(n.memory) };
            let text = format!(
                "{memory}, {}{}{}",
                if n.cpus { "CPUs" } else { "no CPU" },
                figure(n.read_bandwidth_mib_s, "MiB/s"),
                figure(n.read_latency_ns, "ns")
            );
            row(out, &format!("node {}", n.id), text)?;
        }
        if self.nodes.iter().all(|n| n.read_bandwidth_mib_s.is_none()) {
            row(out, "HMAT", "no figures: the kernel does not tell kinds of memory apart".to_owned())?;
        }
        let spaces: Vec<_> = self.spaces.iter().map(|(n, s)| format!("{n} {s}")).collect();
        row(out, "spaces (nodes)", spaces.join(", "))?;
        let cuda = if self.cuda_driver {
            "present"
        } else {
            "no driver (libcuda.so.1): nothing is registered with a device"
        };
        row(out, "CUDA", cuda.to_owned())
    }
}
