//! The Jinja dialect of chat templates: what `transformers` sets up around a template (blocks trimmed, Python's string
//! and dictionary methods, `raise_exception`, `strftime_now`, an unescaped `tojson`, `{% generation %}` blocks).

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value, escape_formatter};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::strftime::strftime;

/// Name of the one template; without an extension, so nothing is escaped.
pub(super) const NAME: &str = "chat_template";

/// An environment that holds `source` under [`NAME`].
pub(super) fn environment(source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(python_formatter);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", tojson);
    environment.add_template_owned(NAME, without_generation_tags(source))?;
    Ok(environment)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// The present time in UTC.
fn strftime_now(format: String) -> Result<String, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    strftime(&format, now).map_err(|why| Error::new(ErrorKind::InvalidOperation, why))
}

/// Python writes `True`, `False` and `None`.
fn python_formatter(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.write_str("None").map_err(Error::from),
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }).map_err(Error::from),
        _ => escape_formatter(out, state, value),
    }
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`.
fn tojson(value: &Value, arguments: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = arguments.get("indent")?;
    if arguments.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson with ensure_ascii is not supported"));
    }
    arguments.assert_all_used()?;
    let mut out = Vec::new();
    let written = match indent {
        Some(width) => {
            let indent = " ".repeat(width);
            value.serialize(&mut Serializer::with_formatter(&mut out, PrettyFormatter::with_indent(indent.as_bytes())))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut out, PythonSpacing)),
    };
    written.map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    String::from_utf8(out).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

/// One line, a space after each comma and colon.
struct PythonSpacing;

impl PythonSpacing {
    fn separate<W: ?Sized + io::Write>(out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }
}

impl Formatter for PythonSpacing {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        Self::separate(out, first)
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        Self::separate(out, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

/// `{% generation %}` marks what the assistant writes and prints nothing itself. It becomes a block of the same
/// extent and whitespace control, since the mask is cut at render boundaries.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::new();
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open);
        out.push_str(before);
        let Some(close) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(close);
        let word = tag[2..].trim_matches(|c: char| c.is_whitespace() || "+-".contains(c));
        let replaced = match word {
            "generation" => tag.replace("generation", "if true"),
            "endgeneration" => tag.replace("endgeneration", "endif"),
            _ => tag.to_owned(),
        };
        out.push_str(&replaced);
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn render(source: &str, context: Value) -> Result<String, Error> {
        environment(source)?.get_template(NAME)?.render(context)
    }

    fn context() -> Value {
        Value::from(minijinja::value::Serde(serde_json::json!({
            "text": "  two words ", "flag": true, "nothing": null, "tool": {"name": "é<&>'", "args": [1, 2.5, [], {}]},
        })))
    }

    #[test]
    fn blocks_leave_no_space() {
        let source = "a\n  {% if flag %}\nb\n  {% endif %}\nc\n";
        assert_eq!(render(source, context()).unwrap(), "a\nb\nc");
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        assert_eq!(render("{{ tool | tojson }}", context()).unwrap(), r#"{"name": "é<&>'", "args": [1, 2.5, [], {}]}"#);
        let indented = "{\n  \"name\": \"é<&>'\",\n  \"args\": [\n    1,\n    2.5,\n    [],\n    {}\n  ]\n}";
        assert_eq!(render("{{ tool | tojson(indent=2) }}", context()).unwrap(), indented);
        assert!(render("{{ tool | tojson(colour=2) }}", context()).is_err());
    }

    #[test]
    fn python_methods_and_words() {
        let source =
            "{{ text.strip().split(' ')[-1] }}|{{ flag }}|{{ nothing }}|{{ missing }}|{{ tool.get('x', 'y') }}";
        assert_eq!(render(source, context()).unwrap(), "words|True|None||y");
    }

    #[test]
    fn loops_may_break() {
        assert_eq!(
            render("{% for n in [1,2,3] %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}", context())
                .unwrap(),
            "1"
        );
    }

    #[test]
    fn a_template_may_refuse() {
        let error = render("{{ raise_exception('roles must alternate') }}", context()).unwrap_err();
        assert!(error.to_string().contains("roles must alternate"), "{error}");
    }

    #[test]
    fn generation_blocks_are_transparent() {
        let source = "x {%- generation -%} {{ text }} {%- endgeneration %}\ny{% generation %}z{% endgeneration %}";
        assert_eq!(render(source, context()).unwrap(), "x  two words yz");
    }
}
