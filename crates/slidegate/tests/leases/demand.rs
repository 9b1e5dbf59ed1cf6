//! Random requests to several instances.

use fastrand::Rng;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) at: u64,
    pub(crate) who: usize,
    pub(crate) cost: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    Poisson,
    /// Each instance has five times its rate in a fifth of the time.
    Bursty,
    /// By rank^-1.5.
    Skewed,
    /// Four of five go to one instance, and each half window to another one.
    MovingPeak,
}

impl Shape {
    pub(crate) const ALL: [Self; 4] = [Self::Poisson, Self::Bursty, Self::Skewed, Self::MovingPeak];
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Demand {
    pub(crate) shape: Shape,
    pub(crate) limit: u64,
    pub(crate) window_us: u64,
    pub(crate) instances: usize,
    /// Demand as a share of the limit.
    pub(crate) load: f64,
    pub(crate) highest_cost: u64,
    pub(crate) windows: u64,
}

impl Demand {
    pub(crate) fn arrivals(&self, rng: &mut Rng) -> Vec<Arrival> {
        #[allow(clippy::cast_precision_loss)] // small numbers
        let float = |number: u64| number as f64;
        let mean_cost = float(self.highest_cost + 1) / 2.0;
        let mut rate = self.load * float(self.limit) / float(self.window_us) / mean_cost;
        let slot_us = self.window_us / 10;
        let slots = 10 * self.windows as usize + 1;
        let bursts: Vec<bool> = (0..slots * self.instances).map(|_| rng.u8(..5) == 0).collect();
        if matches!(self.shape, Shape::Bursty) {
            rate *= 5.0;
        }
        let weights: Vec<f64> = (1..=self.instances as u64).map(|rank| float(rank).powf(-1.5)).collect();
        let (mut at, mut arrivals) = (0.0, Vec::new());
        loop {
            at -= (1.0 - rng.f64()).ln() / rate;
            let time = at as u64;
            if time >= self.windows * self.window_us {
                return arrivals;
            }
            let anyone = rng.usize(..self.instances);
            let who = match self.shape {
                Shape::Poisson => anyone,
                Shape::Bursty if bursts[(time / slot_us) as usize * self.instances + anyone] => anyone,
                Shape::Bursty => continue,
                Shape::Skewed => {
                    let mut rest = rng.f64() * weights.iter().sum::<f64>();
                    let found = weights.iter().position(|weight| {
                        rest -= weight;
                        rest < 0.0
                    });
                    found.unwrap_or(0)
                }
                Shape::MovingPeak if rng.u8(..5) == 0 => anyone,
                Shape::MovingPeak => (time / (self.window_us / 2)) as usize % self.instances,
            };
            arrivals.push(Arrival { at: time, who, cost: rng.u64(1..=self.highest_cost) });
        }
    }
}
