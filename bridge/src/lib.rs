//! The one Rust crate of Fathom: the crates `tokenizers` and `minijinja` behind a small cxx bridge.
//! Every function takes bytes, turns panics and errors into a message, and is safe to call from many threads.

mod chat_template;
mod guard;
mod pieces;
mod python_value;
mod strftime;
mod tiktoken;
mod tokenizer;

use chat_template::TemplateCore;
use ffi::EncodeCheck;
use guard::guarded;
use tokenizer::TokenizerCore;

#[cxx::bridge(namespace = "fathom::bridge")]
mod ffi {
    /// What each id decodes to, flattened: id `i` owns `bytes[offsets[i]..offsets[i + 1]]`.
    struct TokenTable {
        bytes: Vec<u8>,
        offsets: Vec<u32>,
        /// Bit 0: the id exists; bit 1: an added token; bit 2: marked special.
        flags: Vec<u8>,
    }

    /// One `added_tokens` entry of tokenizer.json.
    struct AddedTokenText {
        id: u32,
        content: String,
    }

    unsafe extern "C++" {
        include!("fathom_bridge/include/encode_check.h");
        type EncodeCheck;
        fn may_go_on(self: &EncodeCheck, num_tokens: usize) -> bool;
    }

    extern "Rust" {
        type TokenizerCore;
        /// `json` is the whole of tokenizer.json. Only byte-level BPE is accepted.
        fn tokenizer_load(json: &[u8]) -> Result<Box<TokenizerCore>>;
        /// `model` is the whole of tiktoken.model, `config` that of tokenizer_config.json or empty.
        fn tokenizer_load_tiktoken(model: &[u8], config: &[u8]) -> Result<Box<TokenizerCore>>;
        /// Ids of `text` with no added token ever recognised. As in the two others, an error when `check` says so.
        fn encode_plain(self: &TokenizerCore, text: &[u8], check: &EncodeCheck) -> Result<Vec<u32>>;
        /// Ids of `text` with every added token recognised.
        fn encode_trusted(self: &TokenizerCore, text: &[u8], check: &EncodeCheck) -> Result<Vec<u32>>;
        /// As `encode_trusted`, then `sentinel` is taken out of everything between added tokens.
        fn encode_marked(
            self: &TokenizerCore,
            text: &[u8],
            sentinel: &[u8],
            check: &EncodeCheck,
        ) -> Result<Vec<u32>>;
        /// The ids that the file's own post-processor puts around an empty text.
        fn encode_empty(self: &TokenizerCore) -> Result<Vec<u32>>;
        fn token_table(self: &TokenizerCore) -> Result<TokenTable>;
        fn added_tokens(self: &TokenizerCore) -> Result<Vec<AddedTokenText>>;

        type TemplateCore;
        fn template_compile(source: &[u8]) -> Result<Box<TemplateCore>>;
        /// `context` is a JSON object whose members become the template's variables;
        /// `now_unix_s` is what `strftime_now` formats, in UTC.
        fn template_render(template_core: &TemplateCore, context: &[u8], now_unix_s: i64) -> Result<Vec<u8>>;
    }
}

fn tokenizer_load(json: &[u8]) -> Result<Box<TokenizerCore>, String> {
    guarded(|| TokenizerCore::load(json).map(Box::new))
}

fn tokenizer_load_tiktoken(model: &[u8], config: &[u8]) -> Result<Box<TokenizerCore>, String> {
    guarded(|| TokenizerCore::load_tiktoken(model, config).map(Box::new))
}

impl TokenizerCore {
    fn encode_plain(&self, text: &[u8], check: &EncodeCheck) -> Result<Vec<u32>, String> {
        guarded(|| self.plain_ids(&String::from_utf8_lossy(text), check))
    }
    fn encode_trusted(&self, text: &[u8], check: &EncodeCheck) -> Result<Vec<u32>, String> {
        guarded(|| self.trusted_ids(&String::from_utf8_lossy(text), check))
    }
    fn encode_marked(&self, text: &[u8], sentinel: &[u8], check: &EncodeCheck) -> Result<Vec<u32>, String> {
        let (text, sentinel) = (String::from_utf8_lossy(text), String::from_utf8_lossy(sentinel));
        guarded(|| self.marked_ids(&text, &sentinel, check))
    }
    fn encode_empty(&self) -> Result<Vec<u32>, String> {
        guarded(|| self.frame_ids())
    }
    fn token_table(&self) -> Result<ffi::TokenTable, String> {
        guarded(|| self.table())
    }
    fn added_tokens(&self) -> Result<Vec<ffi::AddedTokenText>, String> {
        guarded(|| Ok(self.added()))
    }
}

fn template_compile(source: &[u8]) -> Result<Box<TemplateCore>, String> {
    guarded(|| TemplateCore::compile(source).map(Box::new))
}

fn template_render(core: &TemplateCore, context: &[u8], now_unix_s: i64) -> Result<Vec<u8>, String> {
    guarded(|| core.render(context, now_unix_s).map(String::into_bytes))
}
