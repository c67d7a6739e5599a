// Random numbers that are the same on every machine and compiler: fixed integer algorithms, no
// std::distribution.
//   Rng         a sequential generator (xoshiro256**), for simulations and property tests
//   hash_u64    counter-based: a number that depends on its arguments only, for sampling a token
#pragma once

#include <cstdint>

namespace fathom {

// SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection with full avalanche.
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Counter-based: equal arguments give equal numbers, whatever was drawn before.
constexpr uint64_t hash_u64(uint64_t seed, uint64_t a, uint64_t b = 0, uint64_t c = 0) {
  return mix64(mix64(mix64(mix64(seed) ^ a) ^ b) ^ c);
}

// [0, 1) with 53 random bits.
constexpr double unit_double(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

class Rng {
 public:
  explicit Rng(uint64_t seed) {
    for (uint64_t& word : state_) word = seed = mix64(seed);
  }

  uint64_t next_u64() {
    const uint64_t result = rotl(state_[1] * 5, 7) * 9;
    const uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = rotl(state_[3], 45);
    return result;
  }
  double next_double() { return unit_double(next_u64()); }
  // Uniform in [0, bound), without bias (Lemire 2019). bound > 0.
  uint64_t next_below(uint64_t bound) {
    unsigned __int128 product = static_cast<unsigned __int128>(next_u64()) * bound;
    if (static_cast<uint64_t>(product) < bound) {
      const uint64_t threshold = -bound % bound;
      while (static_cast<uint64_t>(product) < threshold) {
        product = static_cast<unsigned __int128>(next_u64()) * bound;
      }
    }
    return static_cast<uint64_t>(product >> 64);
  }

 private:
  static constexpr uint64_t rotl(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }
  uint64_t state_[4];
};

}  // namespace fathom
