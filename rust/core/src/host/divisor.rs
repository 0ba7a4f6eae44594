//! Division by a number that is fixed for a whole refresh.

/// A divisor. A division is one multiplication and one shift.
#[derive(Clone, Copy)]
pub struct Divisor {
    pub value: u64,
    factor: u64,
    shift: u32,
}

impl Divisor {
    /// A divisor of at least 1.
    ///
    /// The factor is `ceil(2^(31 + k) / value)` for a divisor up to 2^k. Quotients of dividends below 2^31 are exact then
    /// (Granlund and Montgomery, "Division by Invariant Integers using Multiplication"), and products fit 64 bits.
    pub const fn new(value: u64) -> Divisor {
        if value >= 1 << 31 {
            // No dividend reaches the divisor, so every quotient is 0.
            return Divisor { value, factor: 0, shift: 0 };
        }
        let shift = 31 + value.next_power_of_two().trailing_zeros();
        Divisor { value, factor: (1u64 << shift).div_ceil(value), shift }
    }

    /// The quotient of a dividend below 2^31.
    pub const fn divide(self, dividend: u32) -> u32 {
        debug_assert!(dividend < 1 << 31);
        ((dividend as u64 * self.factor) >> self.shift) as u32
    }

    /// The remainder of a dividend below 2^31.
    pub const fn remainder(self, dividend: u32) -> u64 {
        dividend as u64 - self.divide(dividend) as u64 * self.value
    }

    /// The quotient of a table entry. A negative entry counts as 0.
    pub const fn divide_entry(self, entry: i32) -> i32 {
        let entry = if entry < 0 { 0 } else { entry };
        self.divide(entry as u32) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::Divisor;

    #[test]
    fn quotients_are_exact_on_both_sides_of_every_multiple() {
        const LAST: u64 = i32::MAX as u64;
        let near_powers = (1..=62).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        for value in (1..5000).chain(near_powers).chain([i64::MAX as u64, u64::MAX]) {
            let divisor = Divisor::new(value);
            // The largest dividends are those that a factor of too few bits gets wrong.
            for multiple in [1, 2, LAST / value / 2, LAST / value].map(|times| value.saturating_mul(times)) {
                for dividend in [multiple.saturating_sub(1), multiple, multiple.saturating_add(1), LAST] {
                    let dividend = dividend.min(LAST);
                    assert_eq!(u64::from(divisor.divide(dividend as u32)), dividend / value, "{dividend} / {value}");
                    assert_eq!(divisor.remainder(dividend as u32), dividend % value, "{dividend} % {value}");
                }
            }
        }
    }

    #[test]
    fn a_negative_entry_divides_as_0() {
        let divisor = Divisor::new(3);
        assert_eq!(
            [i32::MIN, -4, -1, 0, 2, 3, i32::MAX].map(|entry| divisor.divide_entry(entry)),
            [0, 0, 0, 0, 0, 1, i32::MAX / 3]
        );
    }
}
