//! Learning rate: a linear warm-up, then the shape that the recipe names.

use spectrain_core::recipe::ScheduleShape;

/// Learning rate of every optimiser step.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    shape: ScheduleShape,
    peak: f64,
    warmup: usize,
    /// First step of the falling part.
    fall: usize,
    total: usize,
}

impl Schedule {
    /// `warmup_ratio` of `total` steps rise linearly to `peak`, rounded up; `decay_share` of them, rounded up, fall at
    /// the end under [`ScheduleShape::Wsd`] and is not read elsewhere.
    pub fn new(shape: ScheduleShape, peak: f64, warmup_ratio: f64, decay_share: f64, total: usize) -> Self {
        let part = |share: f64| (share * total as f64).ceil() as usize;
        let warmup = part(warmup_ratio);
        let fall = match shape {
            ScheduleShape::Wsd => total.saturating_sub(part(decay_share)).max(warmup),
            _ => warmup,
        };
        Self { shape, peak, warmup, fall, total }
    }

    /// Rate of step `step`, counted from 0.
    pub fn rate(&self, step: usize) -> f64 {
        if step < self.warmup {
            return self.peak * (step + 1) as f64 / self.warmup as f64;
        }
        let rest = self.total.saturating_sub(self.fall).max(1) as f64;
        let progress = (step.saturating_sub(self.fall) as f64 / rest).min(1.0);
        let share = match self.shape {
            ScheduleShape::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
            ScheduleShape::Linear | ScheduleShape::Wsd => 1.0 - progress,
            ScheduleShape::Constant => 1.0,
        };
        self.peak * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates of a peak of 2 over 100 steps, 10 of them warm-up and, under WSD, 20 decay.
    fn check(shape: ScheduleShape, expected: &[(usize, f64)]) {
        let s = Schedule::new(shape, 2.0, 0.1, 0.2, 100);
        for &(step, rate) in [(0, 0.2), (4, 1.0), (9, 2.0), (10, 2.0)].iter().chain(expected) {
            assert!((s.rate(step) - rate).abs() < 1e-12, "{shape:?} at {step}: {} against {rate}", s.rate(step));
        }
    }

    #[test]
    fn every_shape_warms_up_and_then_has_its_hand_values() {
        // One third of the way down a cosine is 3/4, half 1/2, two thirds 1/4.
        check(ScheduleShape::Cosine, &[(40, 1.5), (55, 1.0), (70, 0.5), (100, 0.0), (120, 0.0)]);
        check(ScheduleShape::Linear, &[(19, 1.8), (55, 1.0), (91, 0.2), (100, 0.0), (120, 0.0)]);
        check(ScheduleShape::Wsd, &[(50, 2.0), (80, 2.0), (81, 1.9), (90, 1.0), (99, 0.1), (100, 0.0)]);
        check(ScheduleShape::Constant, &[(50, 2.0), (99, 2.0), (100, 2.0)]);
    }

    #[test]
    fn shares_are_rounded_up_and_a_run_of_one_step_moves() {
        let s = Schedule::new(ScheduleShape::Wsd, 1.0, 0.0, 0.25, 5);
        assert_eq!([0, 2, 3, 4].map(|i| s.rate(i)), [1.0, 1.0, 1.0, 0.5]);
        for shape in [ScheduleShape::Cosine, ScheduleShape::Linear, ScheduleShape::Wsd, ScheduleShape::Constant] {
            assert_eq!(Schedule::new(shape, 1.0, 0.0, 0.2, 1).rate(0), 1.0, "{shape:?}");
        }
    }
}
