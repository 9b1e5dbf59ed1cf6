//! Small text charts: a sparkline and a bar.

/// Characters of text charts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Glyphs {
    /// Blocks of eight heights.
    Blocks,
    /// For terminals without Unicode.
    Ascii,
}

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII: [char; 8] = ['.', ':', '-', '=', '+', '*', '#', '@'];

impl Glyphs {
    fn heights(self) -> [char; 8] {
        match self {
            Self::Blocks => BLOCKS,
            Self::Ascii => ASCII,
        }
    }

    /// A line of at most `width` characters. 0 is a space; all other values are visible.
    pub(crate) fn sparkline(self, values: &[u64], width: usize) -> String {
        let columns = fitted(values, width);
        let most = columns.iter().copied().max().unwrap_or(0);
        let glyph = |value: u64| {
            if value == 0 {
                return ' ';
            }
            let height = (u128::from(value) * 8).div_ceil(u128::from(most)) - 1;
            self.heights()[usize::try_from(height).unwrap_or(7).min(7)]
        };
        columns.into_iter().map(glyph).collect()
    }

    /// A bar of at most `width` characters; at least one unless the value is 0.
    pub(crate) fn bar(self, value: u64, most: u64, width: usize) -> String {
        if value == 0 || most == 0 {
            return String::new();
        }
        let cells = (u128::from(value) * width as u128).div_ceil(u128::from(most));
        let full = match self {
            Self::Blocks => '█',
            Self::Ascii => '#',
        };
        std::iter::repeat_n(full, usize::try_from(cells).unwrap_or(width)).collect()
    }
}

/// The values, with neighbours summed to at most `width` values.
fn fitted(values: &[u64], width: usize) -> Vec<u64> {
    let per_column = values.len().div_ceil(width.max(1)).max(1);
    values.chunks(per_column).map(|chunk| chunk.iter().sum()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A burst of one request in a quiet day must be visible.
    #[test]
    fn a_sparkline_shows_everything_that_is_not_zero() {
        assert_eq!(Glyphs::Blocks.sparkline(&[0, 1, 1000, 500], 60), " ▁█▄");
        assert_eq!(Glyphs::Ascii.sparkline(&[0, 1, 1000, 500], 60), " .@=");
        assert_eq!(Glyphs::Blocks.sparkline(&[1, 0, 0, 0, 2, 2], 2), "▂█");
        assert_eq!(Glyphs::Blocks.sparkline(&[], 10), "");
        assert_eq!(Glyphs::Blocks.sparkline(&[u64::MAX], 10), "█");
    }

    /// A small value must be visible, and a bar must not exceed its width.
    #[test]
    fn a_bar_is_in_proportion_and_never_empty_for_something() {
        assert_eq!(Glyphs::Ascii.bar(1, 1000, 20), "#");
        assert_eq!(Glyphs::Ascii.bar(500, 1000, 20), "##########");
        assert_eq!(Glyphs::Ascii.bar(1000, 1000, 20).len(), 20);
        assert_eq!(Glyphs::Ascii.bar(0, 1000, 20), "");
    }
}
