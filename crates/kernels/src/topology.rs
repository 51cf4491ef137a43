//! How many threads this process should compute with.
//!
//! The kernels are bound by memory bandwidth or by the vector units, which hardware threads of one core
//! share: so one thread per physical core, of those that the process may use, and no more than its
//! quota of processor time. Anything that can't be read is taken as not limiting.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, thread};

/// The number of threads to compute with: physical cores that this process may run on, at most its
/// cgroup's quota (rounded down: a throttled thread holds up all others), at least 1.
#[must_use]
pub fn default_threads() -> usize {
    let root = Path::new("/");
    let processors = allowed_processors();
    let cores = if processors.is_empty() {
        thread::available_parallelism().map_or(1, usize::from)
    } else {
        physical_cores(root, &processors)
    };
    let quota = quota_processors(root).map_or(usize::MAX, |quota| quota as usize);
    cores.min(quota).max(1)
}

/// The processors that the scheduler may put this thread on; empty where that can't be found out.
#[cfg(target_os = "linux")]
#[must_use]
pub fn allowed_processors() -> Vec<usize> {
    // Larger than `libc::cpu_set_t`, which ends at 1,024 processors.
    let mut set = [0_u64; 128];
    // SAFETY: the kernel writes at most the given number of bytes, all of them within `set`.
    let status = unsafe {
        libc::sched_getaffinity(
            0,
            size_of_val(&set),
            set.as_mut_ptr().cast::<libc::cpu_set_t>(),
        )
    };
    if status != 0 {
        return Vec::new();
    }
    (0..set.len() * 64)
        .filter(|processor| set[processor / 64] >> (processor % 64) & 1 == 1)
        .collect()
}

/// The processors that the scheduler may put this thread on; empty where that can't be found out.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn allowed_processors() -> Vec<usize> {
    Vec::new()
}

/// The number of physical cores that `processors` (hardware threads) belong to, by the lists of
/// siblings in `sys/devices/system/cpu` under `root`.
#[must_use]
pub fn physical_cores(root: &Path, processors: &[usize]) -> usize {
    let cores: BTreeSet<String> = processors
        .iter()
        .map(|processor| {
            let topology = root.join(format!(
                "sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
            ));
            match fs::read_to_string(topology) {
                Ok(siblings) if !siblings.trim().is_empty() => siblings.trim().to_owned(),
                _ => format!("processor {processor}"),
            }
        })
        .collect();
    cores.len()
}

/// The smallest quota of processor time, in processors, among the control groups (version 1 or 2) that
/// this process is in, by the files in `proc` and `sys/fs/cgroup` under `root`. `None`: no limit.
#[must_use]
pub fn quota_processors(root: &Path) -> Option<f64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mount = root.join("sys/fs/cgroup");
    groups
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            if controllers.is_empty() {
                let v2 = |directory: PathBuf| quota_v2(&directory.join("cpu.max"));
                least([
                    least_upwards(&mount, path, v2),
                    least_upwards(&mount.join("unified"), path, v2),
                ])
            } else if controllers.split(',').any(|name| name == "cpu") {
                least([
                    least_upwards(&mount.join("cpu"), path, quota_v1),
                    least_upwards(&mount.join(controllers), path, quota_v1),
                ])
            } else {
                None
            }
        })
        .reduce(smaller)
}

fn smaller(a: f64, b: f64) -> f64 {
    if b < a { b } else { a }
}

fn least(quotas: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    quotas.into_iter().flatten().reduce(smaller)
}

/// The least quota of the group `path` and of all groups above it. Inside a container the path may be
/// the host's and lead nowhere; the group at the mount is then the container's own.
fn least_upwards(mount: &Path, path: &str, quota: impl Fn(PathBuf) -> Option<f64>) -> Option<f64> {
    let path = Path::new(path.trim_start_matches('/'));
    least(path.ancestors().map(|group| quota(mount.join(group))))
}

/// `cpu.max`: the quota and the period in microseconds, or `max` and the period.
fn quota_v2(file: &Path) -> Option<f64> {
    let text = fs::read_to_string(file).ok()?;
    let mut fields = text.split_ascii_whitespace();
    ratio(fields.next()?, fields.next()?)
}

/// `cpu.cfs_quota_us` (−1: none) and `cpu.cfs_period_us`.
fn quota_v1(directory: PathBuf) -> Option<f64> {
    let quota = fs::read_to_string(directory.join("cpu.cfs_quota_us")).ok()?;
    let period = fs::read_to_string(directory.join("cpu.cfs_period_us")).ok()?;
    ratio(&quota, &period)
}

fn ratio(quota: &str, period: &str) -> Option<f64> {
    let quota: f64 = quota.trim().parse().ok()?;
    let period: f64 = period.trim().parse().ok()?;
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}
