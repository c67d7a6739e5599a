//! Moonlight and Kimi-K2 publish `tiktoken.model` in place of tokenizer.json: one line per token, its bytes in
//! base64 and its rank. This makes the same byte-level BPE tokenizer from it, with the pre-tokenizer and the
//! reserved tokens that their published tokenizer code has.

use std::collections::HashMap;

use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

/// The alternatives of Kimi's pattern, in order.
const PATTERN: [&str; 8] = [
    r"[\p{Han}]+",
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    ),
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    ),
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
];

/// Ids after the ranks are special tokens, named by tokenizer_config.json or "<|reserved_token_ID|>".
const NUM_SPECIAL: u32 = 256;

pub fn load(model: &[u8], config: &[u8], char_of_byte: &[char; 256]) -> Result<Tokenizer, String> {
    let tokens = parse_ranks(model)?;
    let spell = |bytes: &[u8]| bytes.iter().map(|b| char_of_byte[*b as usize]).collect::<String>();
    let merges = merges_of(&tokens).into_iter().map(|(left, right)| (spell(left), spell(right))).collect();
    let vocab = tokens.iter().enumerate().map(|(rank, bytes)| (spell(bytes), rank as u32)).collect();
    let bpe = BPE::builder()
        .vocab_and_merges::<tokenizers::models::bpe::Vocab>(vocab, merges)
        .ignore_merges(true)
        .build()
        .map_err(|e| e.to_string())?;

    let mut tokenizer = Tokenizer::new(bpe);
    let split = Split::new(SplitPattern::Regex(PATTERN.join("|")), SplitDelimiterBehavior::Isolated, false)
        .map_err(|e| e.to_string())?;
    let bytes = ByteLevel::new(false, false, false);
    tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![split.into(), bytes.into()])));
    tokenizer.with_decoder(Some(bytes));
    tokenizer.add_special_tokens(special_tokens(tokens.len() as u32, config)?).map_err(|e| e.to_string())?;
    Ok(tokenizer)
}

/// Token bytes by rank; ranks must be 0, 1, 2, ...
fn parse_ranks(model: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let text = std::str::from_utf8(model).map_err(|e| e.to_string())?;
    let mut tokens = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let where_ = format!("line {}", i + 1);
        let (encoded, rank) = line.split_once(' ').ok_or(format!("{where_}: expected \"BASE64 RANK\""))?;
        if rank.parse() != Ok(tokens.len()) {
            return Err(format!("{where_}: expected rank {}, found {rank}", tokens.len()));
        }
        tokens.push(decode_base64(encoded).ok_or(format!("{where_}: not base64"))?);
    }
    if tokens.is_empty() {
        return Err("the file holds no tokens".into());
    }
    Ok(tokens)
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut buffer, mut num_bits) = (0u32, 0);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        buffer = (buffer << 6 | u32::from(value)) & 0xFF_FFFF;
        num_bits += 6;
        if num_bits >= 8 {
            num_bits -= 8;
            bytes.push((buffer >> num_bits) as u8);
        }
    }
    (!bytes.is_empty()).then_some(bytes)
}

/// tiktoken joins any two neighbours whose bytes together are a token, lowest rank first: every way to split a
/// token in two tokens is a merge, ordered by the token's rank, then by the parts'.
fn merges_of(tokens: &[Vec<u8>]) -> Vec<(&[u8], &[u8])> {
    let ranks: HashMap<&[u8], usize> = tokens.iter().enumerate().map(|(i, t)| (t.as_slice(), i)).collect();
    let mut merges = Vec::new();
    for token in tokens {
        let mut splits: Vec<_> = (1..token.len())
            .map(|at| token.split_at(at))
            .filter(|(left, right)| ranks.contains_key(left) && ranks.contains_key(right))
            .collect();
        splits.sort_by_key(|(left, right)| (ranks[left], ranks[right]));
        merges.extend(splits);
    }
    merges
}

fn special_tokens(first_id: u32, config: &[u8]) -> Result<Vec<AddedToken>, String> {
    let config: serde_json::Value = match config {
        [] => serde_json::Value::Null,
        text => serde_json::from_slice(text).map_err(|e| format!("tokenizer_config.json: {e}"))?,
    };
    let named = &config["added_tokens_decoder"];
    let token = |id: u32| {
        let entry = &named[id.to_string().as_str()];
        let reserved = format!("<|reserved_token_{id}|>");
        let content = entry["content"].as_str().unwrap_or(&reserved);
        AddedToken::from(content, entry["special"].as_bool().unwrap_or(true)).normalized(false)
    };
    Ok((first_id..first_id + NUM_SPECIAL).map(token).collect())
}
