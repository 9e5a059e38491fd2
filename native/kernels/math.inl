// exp, tanh and the normal distribution's tail on F32, relative error about 1e-7 where the result is normal. Same bits in every lane.

namespace ramet {
namespace {

// exp(y) for -87 <= y <= 88 or NaN, which stays NaN. exp(0) is exactly 1.
inline F32 ExpInRange(F32 y) {
  const F32 n = Round(y * Set(1.44269504f));
  F32 r = Fma(n, Set(-0.693359375f), y);  // ln 2 in two parts: n times the first is exact
  r = Fma(n, Set(2.12194440e-4f), r);
  F32 p = Set(1.0f / 5040);  // Taylor on |r| <= ln(2) / 2: the next term is 5e-9
  p = Fma(p, r, Set(1.0f / 720));
  p = Fma(p, r, Set(1.0f / 120));
  p = Fma(p, r, Set(1.0f / 24));
  p = Fma(p, r, Set(1.0f / 6));
  p = Fma(p, r, Set(0.5f));
  p = Fma(p, r, Set(1.0f));
  p = Fma(p, r, Set(1.0f));
  return p * Pow2(n);
}

// 0 below -87 (the result would leave the normal range), +inf above 88. NaN stays NaN.
inline F32 Exp(F32 x) {
  const F32 low = Set(-87.0f);
  const F32 high = Set(88.0f);
  F32 p = ExpInRange(Min(high, Max(low, x)));  // in this order a NaN in x comes through
  p = Select(Less(x, low), Zero(), p);
  return Select(Less(high, x), Set(kInfinity), p);
}

// Exp for x <= 0: the same bits.
inline F32 ExpDown(F32 x) {
  const F32 low = Set(-87.0f);
  return Select(Less(x, low), Zero(), ExpInRange(Max(low, x)));
}

inline F32 Sigmoid(F32 x) { return Set(1.0f) / (Set(1.0f) + Exp(Zero() - x)); }

inline F32 Tanh(F32 x) {
  const F32 a = Abs(x);
  // Far: 1 - 2 / (e^2a + 1). Near zero that cancels; x + x³ P(x²), P fitted on |x| <= 0.7, is good to 7e-10 there.
  const F32 far = Set(1.0f) - Set(2.0f) / (Exp(a + a) + Set(1.0f));
  const F32 z = x * x;
  F32 p = Set(1.90182298e-3f);
  p = Fma(p, z, Set(-7.89221190e-3f));
  p = Fma(p, z, Set(2.15758514e-2f));
  p = Fma(p, z, Set(-5.39221242e-2f));
  p = Fma(p, z, Set(1.33329958e-1f));
  p = Fma(p, z, Set(-3.33333254e-1f));
  const F32 near = Fma(p * z, x, x);
  return Select(Less(a, Set(0.65f)), near, CopySign(far, x));
}

// Φ(-a) = erfc(a / √2) / 2 for a >= 0: exp(-a² / 2) · t · Q(t) / 2 with t = 1 / (1 + a / √8); Q is fitted to 5e-8 up to a = 20.
inline F32 NormalTail(F32 a) {
  const F32 t = Set(1.0f) / Fma(a, Set(0.353553391f), Set(1.0f));
  F32 q = Set(-5.93816191e-2f);
  q = Fma(q, t, Set(2.86102057e-1f));
  q = Fma(q, t, Set(-4.90364611e-1f));
  q = Fma(q, t, Set(2.81689674e-1f));
  q = Fma(q, t, Set(-2.91214325e-2f));
  q = Fma(q, t, Set(2.03742310e-1f));
  q = Fma(q, t, Set(2.42837384e-1f));
  q = Fma(q, t, Set(2.82411814e-1f));
  q = Fma(q, t, Set(2.82084346e-1f));
  // a² rounded would cost up to a² · 3e-8 of relative error after exp; where Fma is fused its rounding error is put back.
  const F32 square = a * a;
  const F32 rest = Fma(a, a, Zero() - square) * Set(0.5f);
  const F32 power = Exp(square * Set(-0.5f));
  return Fma(power, Zero() - rest, power) * (t * q) * Set(0.5f);
}

}  // namespace
}  // namespace ramet
