//! [`Mix`]: which keys are asked for how often.

/// The keys by rank; the one of rank `r`, counted from 1, in proportion to `1 / r^s`.
pub(super) struct Mix {
    /// Of each key, how often it or a hotter one is asked for.
    up_to: Vec<f64>,
}

impl Mix {
    pub(super) fn new(keys: usize, s: f64) -> Mix {
        let mut sum = 0.0;
        let weights = (1..=keys).map(|rank| {
            sum += (rank as f64).powf(-s);
            sum
        });
        Mix { up_to: weights.collect() }
    }

    pub(super) fn draw(&self, random: &mut fastrand::Rng) -> usize {
        let all = self.up_to.last().copied().unwrap_or_default();
        let drawn = random.f64() * all;
        // What is rounded up to all of them is the last one.
        self.up_to.partition_point(|up_to| *up_to <= drawn).min(self.up_to.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_drawn_in_proportion_to_their_rank() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut drawn = |keys, s| {
            let mix = Mix::new(keys, s);
            let mut times = vec![0_u32; keys];
            (0..11_000).for_each(|_| times[mix.draw(&mut random)] += 1);
            times
        };
        assert_eq!(drawn(1, 1.0), [11_000]);
        // 1 + 1/2 + 1/3 = 11/6.
        for (times, expected) in drawn(3, 1.0).into_iter().zip([6_000, 3_000, 2_000]) {
            assert!(times.abs_diff(expected) < 300, "{times}");
        }
        assert!(drawn(11, 0.0).into_iter().all(|times| times.abs_diff(1_000) < 200));
    }
}
