//! Byte-level BPE tokenizers from tokenizer.json: three ways to encode, and the table that decodes.

use std::collections::HashMap;

use tokenizers::models::ModelWrapper;
use tokenizers::tokenizer::{OffsetReferential, PreTokenizedString};
use tokenizers::{
    DecoderWrapper, Model, NormalizedString, Normalizer, OffsetType, PreTokenizer, Tokenizer, TokenizerImpl,
};

use crate::ffi::{AddedTokenText, EncodeCheck, TokenTable};
use crate::pieces::{stages, Pieces};
use crate::tiktoken;

/// Ids above this are refused: the decode table is dense.
const VOCAB_SIZE_MAX: u32 = 1 << 22;

pub struct TokenizerCore {
    inner: Tokenizer,
    /// The character that ByteLevel writes for each byte, and back.
    byte_of_char: HashMap<char, u8>,
    char_of_byte: [char; 256],
}

impl TokenizerCore {
    pub fn load(json: &[u8]) -> Result<Self, String> {
        Self::wrap(Tokenizer::from_bytes(json).map_err(|e| e.to_string())?)
    }

    pub fn load_tiktoken(model: &[u8], config: &[u8]) -> Result<Self, String> {
        Self::wrap(tiktoken::load(model, config, &byte_level_alphabet())?)
    }

    fn wrap(mut inner: Tokenizer) -> Result<Self, String> {
        let ModelWrapper::BPE(model) = inner.get_model() else {
            return Err("the model is not BPE; only byte-level BPE is supported".into());
        };
        if model.dropout.is_some_and(|p| p > 0.0) {
            return Err("BPE dropout makes encoding random; it is not supported".into());
        }
        if !matches!(inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
            return Err("the decoder is not ByteLevel; only byte-level BPE is supported".into());
        }
        inner.with_truncation(None).map_err(|e| e.to_string())?;
        inner.with_padding(None);
        let char_of_byte = byte_level_alphabet();
        let byte_of_char = (0..=255u8).map(|b| (char_of_byte[b as usize], b)).collect();
        let core = Self { inner, byte_of_char, char_of_byte };
        core.id_end()?;
        Ok(core)
    }

    /// Normaliser, pre-tokeniser and BPE alone. The added vocabulary is never consulted, so nothing that a
    /// user writes can become one of its tokens.
    pub fn plain_ids(&self, text: &str, check: &EncodeCheck) -> Result<Vec<u32>, String> {
        let mut pieces = self.pieces(check);
        self.append_plain(text, &mut pieces)?;
        Ok(pieces.ids)
    }

    pub fn trusted_ids(&self, text: &str, check: &EncodeCheck) -> Result<Vec<u32>, String> {
        let parts = self.split_at_added(text);
        let Some(stages) = stages(&self.inner) else {
            return self.finish(parts);
        };
        let mut pieces = self.pieces(check);
        for (part, _, tokens) in parts.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            match tokens {
                Some(tokens) => pieces.ids.extend(tokens.iter().map(|token| token.id)),
                None => pieces.encode(stages, part)?,
            }
        }
        Ok(pieces.ids)
    }

    pub fn marked_ids(&self, text: &str, sentinel: &str, check: &EncodeCheck) -> Result<Vec<u32>, String> {
        let parts = self.split_at_added(text);
        let mut pieces = self.pieces(check);
        let mut plain = String::new();
        for (_, (begin, end), tokens) in parts.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            if let Some(tokens) = tokens {
                self.append_plain(&plain, &mut pieces)?;
                plain.clear();
                pieces.ids.extend(tokens.iter().map(|token| token.id));
            } else {
                plain.push_str(&text[begin..end].replace(sentinel, ""));
            }
        }
        self.append_plain(&plain, &mut pieces)?;
        Ok(pieces.ids)
    }

    pub fn frame_ids(&self) -> Result<Vec<u32>, String> {
        let encoding = self.inner.encode_fast("", true).map_err(|e| e.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }

    pub fn table(&self) -> Result<TokenTable, String> {
        let added = self.inner.get_added_vocabulary();
        let end = self.id_end()?;
        let mut table = TokenTable {
            bytes: Vec::new(),
            offsets: Vec::with_capacity(end as usize + 1),
            flags: Vec::with_capacity(end as usize),
        };
        table.offsets.push(0);
        for id in 0..end {
            let added_text = added.simple_id_to_token(id);
            let is_added = added_text.is_some();
            let text = added_text.or_else(|| self.inner.get_model().id_to_token(id));
            let mut flags = 0u8;
            if let Some(text) = text {
                let is_special = added.is_special_token(&text);
                flags = 1 | (is_added as u8) << 1 | (is_special as u8) << 2;
                table.bytes.extend(self.decode_token(&text));
            }
            table.flags.push(flags);
            let offset = u32::try_from(table.bytes.len()).map_err(|_| "vocabulary over 4 GiB")?;
            table.offsets.push(offset);
        }
        Ok(table)
    }

    pub fn added(&self) -> Vec<AddedTokenText> {
        let mut tokens: Vec<_> = self
            .inner
            .get_added_vocabulary()
            .get_added_tokens_decoder()
            .iter()
            .map(|(id, token)| AddedTokenText { id: *id, content: token.content.clone() })
            .collect();
        tokens.sort_unstable_by_key(|token| token.id);
        tokens
    }

    /// One past the largest id.
    fn id_end(&self) -> Result<u32, String> {
        let ModelWrapper::BPE(model) = self.inner.get_model() else {
            return Err("the model is not BPE".into());
        };
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        let mut ids: Vec<u32> = model.get_vocab().into_values().collect();
        ids.sort_unstable();
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("two tokens of the vocabulary have the id {}", pair[0]));
        }
        let last = ids.into_iter().chain(added.keys().copied()).max();
        match last {
            None => Err("the vocabulary is empty".into()),
            Some(id) if id >= VOCAB_SIZE_MAX => {
                Err(format!("token id {id} is above the limit of {VOCAB_SIZE_MAX}"))
            }
            Some(id) => Ok(id + 1),
        }
    }

    fn pieces<'a>(&'a self, check: &'a EncodeCheck) -> Pieces<'a> {
        Pieces::new(&self.inner, &self.char_of_byte, check)
    }

    fn append_plain(&self, text: &str, pieces: &mut Pieces) -> Result<(), String> {
        let begin = pieces.ids.len();
        let mut normal: NormalizedString = text.into();
        if let Some(normalizer) = self.inner.get_normalizer() {
            normalizer.normalize(&mut normal).map_err(|e| e.to_string())?;
        }
        match stages(&self.inner) {
            Some(stages) => pieces.encode(stages, normal.get())?,
            None => pieces.ids.extend(self.finish(normal.into())?),
        }
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        if pieces.ids[begin..].iter().any(|id| added.contains_key(id)) {
            let formed = pieces.ids.split_off(begin);
            pieces.ids.extend(formed.into_iter().flat_map(|id| self.spell(id)));
        }
        Ok(())
    }

    fn split_at_added(&self, text: &str) -> PreTokenizedString {
        self.inner.get_added_vocabulary().extract_and_normalize(self.inner.get_normalizer(), text)
    }

    /// Pre-tokenises and encodes every piece that has no token yet as a whole, and lists all ids.
    fn finish(&self, mut pieces: PreTokenizedString) -> Result<Vec<u32>, String> {
        let tokenizer: &TokenizerImpl<_, _, _, _, _> = &self.inner;
        if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(|e| e.to_string())?;
        }
        let model = tokenizer.get_model();
        pieces.tokenize(|piece| model.tokenize(piece.get())).map_err(|e| e.to_string())?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::None).map_err(|e| e.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }

    /// ByteLevel's own rule: a token whose characters all stand for bytes is those bytes, any other is its text.
    fn decode_token(&self, text: &str) -> Vec<u8> {
        text.chars()
            .map(|c| self.byte_of_char.get(&c).copied())
            .collect::<Option<Vec<u8>>>()
            .unwrap_or_else(|| text.as_bytes().to_vec())
    }

    /// An added token that BPE itself could form (no published tokenizer has one) is written byte by byte.
    fn spell(&self, id: u32) -> Vec<u32> {
        let added = self.inner.get_added_vocabulary();
        let Some(text) = added.simple_id_to_token(id) else {
            return vec![id];
        };
        self.decode_token(&text)
            .into_iter()
            .filter_map(|byte| {
                let c = self.char_of_byte[byte as usize];
                self.inner.get_model().token_to_id(c.encode_utf8(&mut [0; 4]))
            })
            .filter(|byte_id| !added.get_added_tokens_decoder().contains_key(byte_id))
            .collect()
    }
}

/// GPT-2's printable stand-ins: printable Latin-1 stands for itself, the rest follow from U+0100 on.
fn byte_level_alphabet() -> [char; 256] {
    let mut alphabet = ['\0'; 256];
    let mut next = 0x100;
    for byte in 0..=255u8 {
        alphabet[byte as usize] = match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => byte as char,
            _ => {
                next += 1;
                char::from_u32(next - 1).expect("a valid code point")
            }
        };
    }
    alphabet
}
