//! Learning rate: linear warm-up, then half a cosine down to zero.

/// Learning rate of every optimiser step.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    peak: f64,
    warmup: usize,
    total: usize,
}

impl Schedule {
    /// `warmup_ratio` of `total` steps rise linearly to `peak`; the rest falls along a cosine.
    pub fn new(peak: f64, warmup_ratio: f64, total: usize) -> Self {
        Self { peak, warmup: (warmup_ratio * total as f64).ceil() as usize, total }
    }

    /// Rate of step `step`, counted from 0.
    pub fn rate(&self, step: usize) -> f64 {
        if step < self.warmup {
            return self.peak * (step + 1) as f64 / self.warmup as f64;
        }
        let rest = (self.total - self.warmup).max(1) as f64;
        let progress = (step - self.warmup) as f64 / rest;
        self.peak * 0.5 * (1.0 + (std::f64::consts::PI * progress.min(1.0)).cos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rises_peaks_and_falls() {
        let s = Schedule::new(2.0, 0.1, 100);
        assert!((s.rate(0) - 0.2).abs() < 1e-12);
        assert!((s.rate(9) - 2.0).abs() < 1e-12);
        assert!((s.rate(10) - 2.0).abs() < 1e-12);
        assert!((s.rate(55) - 1.0).abs() < 1e-12);
        assert!(s.rate(99) < 0.01);
    }
}
