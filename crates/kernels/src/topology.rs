//! The machine: how many threads this process should compute with, how much memory is free, which CPU it is.
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
    let v2 = |directory: PathBuf| quota_v2(&directory.join("cpu.max"));
    least_of_groups(root, "cpu", v2, quota_v1)
}

/// Bytes of memory that this process can still take: what the system has available (`MemAvailable`), at most
/// what is left of the limits of its control groups, by the files in `proc` and `sys/fs/cgroup` under `root`.
/// `None`: not known.
#[must_use]
pub fn available_memory_bytes(root: &Path) -> Option<f64> {
    let of_system = meminfo_available(&root.join("proc/meminfo"));
    let left = |limit: &'static str, usage: &'static str| {
        move |group: PathBuf| Some(number(&group.join(limit))? - number(&group.join(usage))?)
    };
    let of_groups = least_of_groups(
        root,
        "memory",
        left("memory.max", "memory.current"),
        left("memory.limit_in_bytes", "memory.usage_in_bytes"),
    );
    of_system.map(|bytes| of_groups.into_iter().fold(bytes, smaller).max(0.0))
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn meminfo_available(file: &Path) -> Option<f64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

/// The number in a file; `None` also for `max`.
fn number(file: &Path) -> Option<f64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The CPU's name for itself, with its family, model and stepping where it tells them: what speeds that were
/// measured belong to.
#[must_use]
pub fn processor_name() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        x86_processor_name()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        cpuinfo_name(&text).unwrap_or_else(|| std::env::consts::ARCH.to_owned())
    }
}

/// By CPUID: leaves 0x80000002 to 0x80000004 spell the name, leaf 1 has the numbers.
#[cfg(target_arch = "x86_64")]
fn x86_processor_name() -> String {
    use std::arch::x86_64::{__cpuid, __get_cpuid_max};
    const NAME: std::ops::RangeInclusive<u32> = 0x8000_0002..=0x8000_0004;
    let mut name = "x86-64".to_owned();
    if __get_cpuid_max(0x8000_0000).0 >= *NAME.end() {
        let bytes: Vec<u8> = NAME
            .map(__cpuid)
            .flat_map(|r| [r.eax, r.ebx, r.ecx, r.edx])
            .flat_map(u32::to_le_bytes)
            .take_while(|&byte| byte != 0)
            .collect();
        let words = String::from_utf8_lossy(&bytes);
        name = words.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    // Family and model have an extension each, in higher bits.
    let eax = __cpuid(1).eax;
    let family = (eax >> 8 & 0xf) + (eax >> 20 & 0xff);
    let model = (eax >> 4 & 0xf) | (eax >> 12 & 0xf0);
    format!(
        "{name} (family {family}, model {model}, stepping {})",
        eax & 0xf
    )
}

/// The first CPU of `/proc/cpuinfo` as arm64 has it: by the numbers of implementer and part, which tell more
/// than any name there.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn cpuinfo_name(text: &str) -> Option<String> {
    let field = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let part = field("CPU part")?;
    let implementer = field("CPU implementer")?;
    Some(format!(
        "{} (implementer {implementer}, part {part})",
        std::env::consts::ARCH
    ))
}

fn smaller(a: f64, b: f64) -> f64 {
    if b < a { b } else { a }
}

fn least(quotas: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    quotas.into_iter().flatten().reduce(smaller)
}

/// The least limit among the control groups that this process is in and those above them, as `v2` reads it from a
/// folder of version 2 and `v1` from one of version 1 of `controller`.
fn least_of_groups(
    root: &Path,
    controller: &str,
    v2: impl Fn(PathBuf) -> Option<f64>,
    v1: impl Fn(PathBuf) -> Option<f64>,
) -> Option<f64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mount = root.join("sys/fs/cgroup");
    let limits = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        if controllers.is_empty() {
            least([
                least_upwards(&mount, path, &v2),
                least_upwards(&mount.join("unified"), path, &v2),
            ])
        } else if controllers.split(',').any(|name| name == controller) {
            least([
                least_upwards(&mount.join(controller), path, &v1),
                least_upwards(&mount.join(controllers), path, &v1),
            ])
        } else {
            None
        }
    });
    limits.reduce(smaller)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_has_a_name() {
        assert!(!processor_name().trim().is_empty());
        assert_eq!(processor_name(), processor_name());
        let text = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n";
        let name = cpuinfo_name(text).unwrap_or_default();
        assert!(name.ends_with("(implementer 0x41, part 0xd40)"), "{name}");
        assert_eq!(cpuinfo_name("processor: 0\n"), None);
    }
}
