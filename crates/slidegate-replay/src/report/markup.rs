//! HTML fragments. All text from a log passes through [`escaped`].

use std::collections::BTreeMap;
use std::fmt::Write as _;

const SPARK_COLUMNS: usize = 120;
const SPARK_HEIGHT: u32 = 20;

/// Escapes text for HTML elements and quoted attributes.
pub(super) fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            c => html.push(c),
        }
    }
    html
}

/// A cell of a table.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    markup: String,
    class: &'static str,
    is_head: bool,
}

pub(super) fn cell(text: &str) -> Cell {
    Cell { markup: escaped(text), class: "", is_head: false }
}

impl Cell {
    /// Aligned as a number.
    pub(super) fn number(self) -> Self {
        Self { class: "n", ..self }
    }

    /// The header of its row.
    pub(super) fn head(self) -> Self {
        Self { is_head: true, ..self }
    }

    /// A key: with its own writing direction and line breaks anywhere.
    pub(super) fn key(self) -> Self {
        Self { markup: format!("<bdi>{}</bdi>", self.markup), class: "key", ..self }
    }

    /// A sentence.
    pub(super) fn wide(self) -> Self {
        Self { class: "wide", ..self }
    }

    /// Other markup.
    pub(super) fn markup(self, markup: &str) -> Self {
        Self { markup: markup.to_owned(), ..self }
    }
}

/// A table that scrolls sideways if it is too wide.
pub(super) fn table(head: &[impl AsRef<str>], rows: impl Iterator<Item = Vec<Cell>>) -> String {
    let mut html = "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>".to_owned();
    let rows: Vec<Vec<Cell>> = rows.collect();
    for (at, name) in head.iter().enumerate() {
        let class = rows.first().and_then(|row| row.get(at)).map_or("", |cell| cell.class);
        let _ = write!(html, "<th scope=\"col\" class=\"{class}\">{}</th>", escaped(name.as_ref()));
    }
    html.push_str("</tr></thead><tbody>");
    for row in rows {
        html.push_str("<tr>");
        for Cell { markup, class, is_head } in row {
            let (tag, scope) = if is_head { ("th", " scope=\"row\"") } else { ("td", "") };
            let _ = write!(html, "<{tag}{scope} class=\"{class}\">{markup}</{tag}>");
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div>");
    html
}

/// Draws counts over this many buckets as bars.
pub(super) fn sparkline(counts: &BTreeMap<usize, u32>, buckets: usize) -> String {
    let columns = buckets.clamp(1, SPARK_COLUMNS);
    let mut sums = vec![0u64; columns];
    for (bucket, count) in counts {
        sums[(bucket * columns / buckets.max(1)).min(columns - 1)] += u64::from(*count);
    }
    let most = sums.iter().copied().max().unwrap_or(0).max(1);
    let mut path = String::new();
    for (at, sum) in sums.iter().enumerate().filter(|(_, sum)| **sum > 0) {
        let height = (sum * u64::from(SPARK_HEIGHT)).div_ceil(most);
        let _ = write!(path, "M{at}.5 {SPARK_HEIGHT}v-{height}");
    }
    format!(
        "<svg class=\"spark\" viewBox=\"0 0 {columns} {SPARK_HEIGHT}\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <path d=\"{path}\"/></svg>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients choose keys.
    #[test]
    fn text_has_no_markup() {
        assert_eq!(
            escaped("</script><img src=x onerror='a(\"b\")'>&"),
            "&lt;/script&gt;&lt;img src=x onerror=&#39;a(&quot;b&quot;)&#39;&gt;&amp;"
        );
    }
}
