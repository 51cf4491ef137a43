//! The x86-64 twins: one zmm register, or two ymm registers.

use std::arch::x86_64::*;

use super::{LANES, Lanes};

/// One zmm register.
#[derive(Clone, Copy)]
pub struct Avx512(pub(crate) __m512);

/// Two ymm registers: lanes 0 to 7 and 8 to 15.
#[derive(Clone, Copy)]
pub struct Avx2(pub(crate) __m256, pub(crate) __m256);

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

impl Lanes for Avx512 {
    type Mask = __mmask16;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm512_set1_ps(x)) }
    }
    #[inline(always)]
    fn load(src: &[f32; LANES]) -> Self {
        // SAFETY: features as for all values of this type; the array has sixteen elements.
        unsafe { Self(_mm512_loadu_ps(src.as_ptr())) }
    }
    #[inline(always)]
    fn store(self, dst: &mut [f32; LANES]) {
        // SAFETY: features as for all values of this type; the array has sixteen elements.
        unsafe { _mm512_storeu_ps(dst.as_mut_ptr(), self.0) }
    }
    #[inline(always)]
    fn load_f16(src: &[u16; LANES]) -> Self {
        // SAFETY: features as for all values of this type; the array has sixteen elements.
        unsafe { Self(_mm512_cvtph_ps(_mm256_loadu_si256(src.as_ptr().cast()))) }
    }
    #[inline(always)]
    fn store_f16(self, dst: &mut [u16; LANES]) {
        // SAFETY: features as for all values of this type; the array has sixteen elements.
        unsafe { _mm256_storeu_si256(dst.as_mut_ptr().cast(), _mm512_cvtps_ph::<NEAREST>(self.0)) }
    }
    #[inline(always)]
    fn load_bf16(src: &[u16; LANES]) -> Self {
        // SAFETY: features as for all values of this type; the array has sixteen elements.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(src.as_ptr().cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    fn from_i32(src: &[i32; LANES]) -> Self {
        // SAFETY: features as for all values of this type; the array has sixteen elements.
        unsafe { Self(_mm512_cvtepi32_ps(_mm512_loadu_si512(src.as_ptr().cast()))) }
    }
    #[inline(always)]
    fn from_u8(src: &[u8; LANES]) -> Self {
        // SAFETY: features as for all values of this type; the array has sixteen elements.
        unsafe {
            let bytes = _mm_loadu_si128(src.as_ptr().cast());
            Self(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)))
        }
    }
    #[inline(always)]
    fn from_i8(src: &[i8; LANES]) -> Self {
        // SAFETY: features as for all values of this type; the array has sixteen elements.
        unsafe {
            let bytes = _mm_loadu_si128(src.as_ptr().cast());
            Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)))
        }
    }
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm512_add_ps(self.0, b.0)) }
    }
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm512_sub_ps(self.0, b.0)) }
    }
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm512_mul_ps(self.0, b.0)) }
    }
    #[inline(always)]
    fn div(self, b: Self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm512_div_ps(self.0, b.0)) }
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm512_sqrt_ps(self.0)) }
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm512_fmadd_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm512_max_ps(self.0, b.0)) }
    }
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm512_min_ps(self.0, b.0)) }
    }
    #[inline(always)]
    fn abs(self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm512_abs_ps(self.0)) }
    }
    #[inline(always)]
    fn neg(self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm512_xor_ps(self.0, _mm512_set1_ps(-0.0))) }
    }
    #[inline(always)]
    fn round_even(self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm512_roundscale_ps::<NEAREST>(self.0)) }
    }
    #[inline(always)]
    fn exp2_integral(self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvttps_epi32(self.0), _mm512_set1_epi32(127));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased)))
        }
    }
    #[inline(always)]
    fn gt(self, b: Self) -> Self::Mask {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, b.0) }
    }
    #[inline(always)]
    fn mask(bits: u16) -> Self::Mask {
        bits
    }
    #[inline(always)]
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm512_mask_blend_ps(mask, b.0, a.0)) }
    }
}

impl Lanes for Avx2 {
    type Mask = (__m256, __m256);

    #[inline(always)]
    fn splat(x: f32) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }
    #[inline(always)]
    fn load(src: &[f32; LANES]) -> Self {
        // SAFETY: features as for all values of this type; the array has sixteen elements.
        unsafe {
            Self(
                _mm256_loadu_ps(src.as_ptr()),
                _mm256_loadu_ps(src.as_ptr().add(8)),
            )
        }
    }
    #[inline(always)]
    fn store(self, dst: &mut [f32; LANES]) {
        // SAFETY: features as for all values of this type; the array has sixteen elements.
        unsafe {
            _mm256_storeu_ps(dst.as_mut_ptr(), self.0);
            _mm256_storeu_ps(dst.as_mut_ptr().add(8), self.1);
        }
    }
    #[inline(always)]
    fn load_f16(src: &[u16; LANES]) -> Self {
        // SAFETY: features as for all values of this type; the array has sixteen elements.
        unsafe {
            Self(
                _mm256_cvtph_ps(_mm_loadu_si128(src.as_ptr().cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(src.as_ptr().add(8).cast())),
            )
        }
    }
    #[inline(always)]
    fn store_f16(self, dst: &mut [u16; LANES]) {
        // SAFETY: features as for all values of this type; the array has sixteen elements.
        unsafe {
            _mm_storeu_si128(
                dst.as_mut_ptr().cast(),
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0),
            );
            _mm_storeu_si128(
                dst.as_mut_ptr().add(8).cast(),
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.1),
            );
        }
    }
    #[inline(always)]
    fn load_bf16(src: &[u16; LANES]) -> Self {
        // SAFETY: features as for all values of this type; the array has sixteen elements.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(src.as_ptr().cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(src.as_ptr().add(8).cast()));
            Self(
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            )
        }
    }
    #[inline(always)]
    fn from_i32(src: &[i32; LANES]) -> Self {
        // SAFETY: features as for all values of this type; the array has sixteen elements.
        unsafe {
            Self(
                _mm256_cvtepi32_ps(_mm256_loadu_si256(src.as_ptr().cast())),
                _mm256_cvtepi32_ps(_mm256_loadu_si256(src.as_ptr().add(8).cast())),
            )
        }
    }
    #[inline(always)]
    fn from_u8(src: &[u8; LANES]) -> Self {
        // SAFETY: features as for all values of this type; the array has sixteen elements.
        unsafe {
            let low = _mm_loadl_epi64(src.as_ptr().cast());
            let high = _mm_loadl_epi64(src.as_ptr().add(8).cast());
            Self(
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(low)),
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(high)),
            )
        }
    }
    #[inline(always)]
    fn from_i8(src: &[i8; LANES]) -> Self {
        // SAFETY: features as for all values of this type; the array has sixteen elements.
        unsafe {
            let low = _mm_loadl_epi64(src.as_ptr().cast());
            let high = _mm_loadl_epi64(src.as_ptr().add(8).cast());
            Self(
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)),
            )
        }
    }
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm256_add_ps(self.0, b.0), _mm256_add_ps(self.1, b.1)) }
    }
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm256_sub_ps(self.0, b.0), _mm256_sub_ps(self.1, b.1)) }
    }
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm256_mul_ps(self.0, b.0), _mm256_mul_ps(self.1, b.1)) }
    }
    #[inline(always)]
    fn div(self, b: Self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm256_div_ps(self.0, b.0), _mm256_div_ps(self.1, b.1)) }
    }
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm256_max_ps(self.0, b.0), _mm256_max_ps(self.1, b.1)) }
    }
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm256_min_ps(self.0, b.0), _mm256_min_ps(self.1, b.1)) }
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe { Self(_mm256_sqrt_ps(self.0), _mm256_sqrt_ps(self.1)) }
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe {
            Self(
                _mm256_fmadd_ps(self.0, b.0, c.0),
                _mm256_fmadd_ps(self.1, b.1, c.1),
            )
        }
    }
    #[inline(always)]
    fn abs(self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            Self(
                _mm256_andnot_ps(sign, self.0),
                _mm256_andnot_ps(sign, self.1),
            )
        }
    }
    #[inline(always)]
    fn neg(self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            Self(_mm256_xor_ps(sign, self.0), _mm256_xor_ps(sign, self.1))
        }
    }
    #[inline(always)]
    fn round_even(self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe {
            Self(
                _mm256_round_ps::<NEAREST>(self.0),
                _mm256_round_ps::<NEAREST>(self.1),
            )
        }
    }
    #[inline(always)]
    fn exp2_integral(self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe {
            let bias = _mm256_set1_epi32(127);
            let low = _mm256_add_epi32(_mm256_cvttps_epi32(self.0), bias);
            let high = _mm256_add_epi32(_mm256_cvttps_epi32(self.1), bias);
            Self(
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(high)),
            )
        }
    }
    #[inline(always)]
    fn gt(self, b: Self) -> Self::Mask {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe {
            (
                _mm256_cmp_ps::<_CMP_GT_OQ>(self.0, b.0),
                _mm256_cmp_ps::<_CMP_GT_OQ>(self.1, b.1),
            )
        }
    }
    #[inline(always)]
    fn mask(bits: u16) -> Self::Mask {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe {
            let each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let low = _mm256_and_si256(_mm256_set1_epi32(i32::from(bits & 0xff)), each);
            let high = _mm256_and_si256(_mm256_set1_epi32(i32::from(bits >> 8)), each);
            (
                _mm256_castsi256_ps(_mm256_cmpeq_epi32(low, each)),
                _mm256_castsi256_ps(_mm256_cmpeq_epi32(high, each)),
            )
        }
    }
    #[inline(always)]
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
        // SAFETY: values of this type exist only inside `dispatch`, which checked the CPU's features.
        unsafe {
            Self(
                _mm256_blendv_ps(b.0, a.0, mask.0),
                _mm256_blendv_ps(b.1, a.1, mask.1),
            )
        }
    }
}
