use super::Policy;

/// Every position stays visible.
#[derive(Clone, Copy, Debug)]
pub struct Full;

impl Policy for Full {
    fn evictable(&self, _first: usize, _last: usize, _len: usize) -> bool {
        false
    }

    fn forgets(&self) -> bool {
        false
    }
}
