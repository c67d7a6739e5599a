//! Pre-tokenising and BPE one piece of the text after the other. The ids are those of the library's pass over
//! the whole, but the work can be ended between pieces, and needs little memory beside the ids.
//!
//! The library runs each pre-tokeniser over all pieces of the one before. Those taken here look at one piece at
//! a time and know nothing of its neighbours, so that going depth first changes nothing but the order of work.

use tokenizers::models::ModelWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::tokenizer::{OffsetReferential, PreTokenizedString};
use tokenizers::{Model, OffsetType, PreTokenizer, SplitDelimiterBehavior, Tokenizer};

use crate::ffi::EncodeCheck;

/// The check is asked after so many bytes: some milliseconds of work.
const CHECK_BYTES: usize = 16 << 10;
/// A piece's own cost, in bytes of text.
const PIECE_BYTES: usize = 8;

pub struct Pieces<'a> {
    model: &'a ModelWrapper,
    char_of_byte: &'a [char; 256],
    check: &'a EncodeCheck,
    bytes_unchecked: usize,
    pub ids: Vec<u32>,
}

/// The pre-tokenisers in order, or `None` where one may look beyond its piece: then only the whole will do.
pub fn stages(tokenizer: &Tokenizer) -> Option<&[PreTokenizerWrapper]> {
    let stages: &[PreTokenizerWrapper] = match tokenizer.get_pre_tokenizer() {
        None => &[],
        Some(PreTokenizerWrapper::Sequence(sequence)) => sequence.as_ref(),
        Some(only) => std::slice::from_ref(only),
    };
    stages.iter().all(looks_at_one_piece).then_some(stages)
}

fn looks_at_one_piece(stage: &PreTokenizerWrapper) -> bool {
    use PreTokenizerWrapper::*;
    match stage {
        Split(_) | Digits(_) | ByteLevel(_) | Punctuation(_) | Whitespace(_) | WhitespaceSplit(_) => true,
        // Metaspace asks whether a piece is the text's first; nobody publishes byte-level BPE with the others.
        _ => false,
    }
}

impl<'a> Pieces<'a> {
    pub fn new(tokenizer: &'a Tokenizer, char_of_byte: &'a [char; 256], check: &'a EncodeCheck) -> Self {
        Self { model: tokenizer.get_model(), char_of_byte, check, bytes_unchecked: 0, ids: Vec::new() }
    }

    /// Appends the ids of `text`.
    pub fn encode(&mut self, stages: &[PreTokenizerWrapper], text: &str) -> Result<(), String> {
        if text.is_empty() {
            return Ok(());
        }
        let Some((stage, rest)) = stages.split_first() else {
            return self.encode_word(text);
        };
        match stage {
            PreTokenizerWrapper::Split(split)
                if matches!(split.behavior, SplitDelimiterBehavior::Isolated) =>
            {
                let mut done = 0;
                for (begin, end) in split.regex.find_iter(text) {
                    self.encode(rest, &text[done..begin])?;
                    self.encode(rest, &text[begin..end])?;
                    done = end;
                }
                self.encode(rest, &text[done..])
            }
            PreTokenizerWrapper::Digits(digits) if digits.individual_digits => {
                let mut done = 0;
                for (begin, digit) in text.match_indices(char::is_numeric) {
                    self.encode(rest, &text[done..begin])?;
                    self.encode(rest, digit)?;
                    done = begin + digit.len();
                }
                self.encode(rest, &text[done..])
            }
            PreTokenizerWrapper::ByteLevel(level) if !level.use_regex && !level.add_prefix_space => {
                let spelled: String = text.bytes().map(|byte| self.char_of_byte[byte as usize]).collect();
                self.encode(rest, &spelled)
            }
            other => {
                let mut pieces: PreTokenizedString = text.into();
                other.pre_tokenize(&mut pieces).map_err(|e| e.to_string())?;
                for (piece, _, _) in pieces.get_splits(OffsetReferential::Normalized, OffsetType::None) {
                    self.encode(rest, piece)?;
                }
                Ok(())
            }
        }
    }

    fn encode_word(&mut self, word: &str) -> Result<(), String> {
        let tokens = self.model.tokenize(word).map_err(|e| e.to_string())?;
        self.ids.extend(tokens.iter().map(|token| token.id));
        self.bytes_unchecked += word.len() + PIECE_BYTES;
        if self.bytes_unchecked >= CHECK_BYTES {
            self.bytes_unchecked = 0;
            if !self.check.may_go_on(self.ids.len()) {
                return Err("ended".into());
            }
        }
        Ok(())
    }
}
