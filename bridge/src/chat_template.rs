//! Chat templates: minijinja set up so that it renders what Hugging Face's jinja2 environment renders.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{from_args, Kwargs, Serde, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use crate::python_value::{display, to_json, JsonStyle};
use crate::strftime;

const NAME: &str = "chat_template";
/// A private context key; templates see the time through `strftime_now` only.
const NOW_KEY: &str = "__fathom_now_unix_s";

pub struct TemplateCore {
    environment: Environment<'static>,
}

impl TemplateCore {
    pub fn compile(source: &[u8]) -> Result<Self, String> {
        let source = std::str::from_utf8(source).map_err(|e| e.to_string())?;
        let mut environment = Environment::new();
        environment.set_syntax(
            SyntaxConfig::builder()
                .trim_blocks(true)
                .lstrip_blocks(true)
                .build()
                .map_err(|e| describe(&e))?,
        );
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(python_method);
        environment.set_formatter(|out, _, value| out.write_str(&display(value)?).map_err(Error::from));
        environment.add_filter("tojson", tojson);
        environment.add_filter("from_json", from_json);
        environment.add_function("from_json", from_json);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_template_owned(NAME, without_generation_tags(source)).map_err(|e| describe(&e))?;
        Ok(Self { environment })
    }

    pub fn render(&self, context: &[u8], now_unix_s: i64) -> Result<String, String> {
        let mut context: serde_json::Value = serde_json::from_slice(context).map_err(|e| e.to_string())?;
        let members = context.as_object_mut().ok_or("the context is not a JSON object")?;
        members.insert(NOW_KEY.into(), now_unix_s.into());
        let template = self.environment.get_template(NAME).map_err(|e| describe(&e))?;
        template.render(Value::from(Serde(&context))).map_err(|e| describe(&e))
    }
}

fn describe(error: &Error) -> String {
    let mut text = match error.detail() {
        Some(detail) => detail.to_string(),
        None => error.kind().to_string(),
    };
    if let Some(line) = error.line() {
        text.push_str(&format!(" (line {line})"));
    }
    text
}

/// `{% generation %}` only marks text for training; its blocks render as they are.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(begin) = rest.find("{%") {
        let Some(length) = rest[begin..].find("%}") else { break };
        let inner = &rest[begin + 2..begin + length];
        let word = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        out.push_str(&rest[..begin + 2]);
        match word {
            "generation" => out.push_str(&inner.replace("generation", "if true")),
            "endgeneration" => out.push_str(&inner.replace("endgeneration", "endif")),
            _ => out.push_str(inner),
        }
        out.push_str("%}");
        rest = &rest[begin + length + 2..];
    }
    out + rest
}

/// The string methods that pycompat lacks or has otherwise, then pycompat.
fn python_method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, method, args);
    };
    match method {
        "rsplit" => {
            let (separator, splits): (Option<String>, Option<i64>) = from_args(args)?;
            let pieces_max = splits.and_then(|n| usize::try_from(n).ok()).map(|n| n + 1);
            Ok(rsplit(text, separator.as_deref(), pieces_max).into_iter().collect())
        }
        "title" => {
            let () = from_args(args)?;
            Ok(Value::from(title(text)))
        }
        "removeprefix" => {
            let (prefix,): (String,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix.as_str()).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (String,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix.as_str()).unwrap_or(text)))
        }
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// Python's rule: a letter is upper-case unless it follows a letter.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut after_letter = false;
    for c in text.chars() {
        if after_letter {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        after_letter = c.is_alphabetic();
    }
    out
}

fn rsplit(text: &str, separator: Option<&str>, pieces_max: Option<usize>) -> Vec<String> {
    let limit = pieces_max.unwrap_or(usize::MAX);
    let mut pieces: Vec<String> = Vec::new();
    let mut rest = if separator.is_none() { text.trim() } else { text };
    while pieces.len() + 1 < limit {
        let cut = match separator {
            Some(separator) => rest.rfind(separator).map(|at| (at, at + separator.len())),
            None => rest
                .char_indices()
                .rev()
                .find(|(_, c)| c.is_whitespace())
                .map(|(at, c)| (at, at + c.len_utf8())),
        };
        let Some((begin, end)) = cut else { break };
        pieces.push(rest[end..].to_string());
        rest = if separator.is_none() { rest[..begin].trim_end() } else { &rest[..begin] };
    }
    if separator.is_some() || !rest.is_empty() {
        pieces.push(rest.to_string());
    }
    pieces.reverse();
    pieces
}

/// Python's `json.dumps` with Hugging Face's defaults: `ensure_ascii=False`, ", " and ": ", keys in order.
fn tojson(value: Value, args: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = args.get("indent")?;
    let separators: Option<Vec<String>> = args.get("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        _ if indent.is_some() => (",".into(), ": ".into()),
        _ => (", ".into(), ": ".into()),
    };
    let style = JsonStyle {
        indent,
        item_separator,
        key_separator,
        ensure_ascii: args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: args.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    args.assert_all_used()?;
    to_json(&value, &style).map(Value::from)
}

fn from_json(text: String) -> Result<Value, Error> {
    let value: serde_json::Value = serde_json::from_str(&text)
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("from_json: {e}")))?;
    Ok(Value::from(Serde(&value)))
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime_now(state: &State, format: String) -> Result<Value, Error> {
    let now = state.lookup(NOW_KEY).and_then(|v| v.as_i64()).unwrap_or(0);
    Ok(Value::from(strftime::format_utc(now, &format)))
}
