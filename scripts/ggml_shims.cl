/* What ggml's kernels call and a driver does not name, by what its hardware has for it. With BY_PTX for NVIDIA, where a
   sub-group is (a part of) the 32 work-items that run in step, as in any OpenCL that has sub-groups there; otherwise for
   PoCL, where a work-group is one sub-group, in attention (which defines DK) a work-item, and half precision is the C
   compiler's. */
#ifdef BY_PTX
#ifdef SIMDGROUP_WIDTH
#define SUB_GROUP_WIDTH SIMDGROUP_WIDTH
#elif defined(DK)
#define SUB_GROUP_WIDTH 32
#else
#define SUB_GROUP_WIDTH N_SIMDWIDTH
#endif
#define get_sub_group_id() ((uint)get_local_id(0) / SUB_GROUP_WIDTH)
#define get_sub_group_local_id() ((uint)get_local_id(0) % SUB_GROUP_WIDTH)

#if defined(N_SIMDWIDTH) || defined(DK)
float sub_group_shuffle_xor(const float value, const uint distance)
{
    float other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(other) : "f"(value), "r"(distance));
    return other;
}

float sub_group_reduce_add(float sum)
{
    for (uint distance = SUB_GROUP_WIDTH / 2; distance > 0; distance /= 2)
        sum += sub_group_shuffle_xor(sum, distance);
    return sum;
}
#elif defined(SIMDGROUP_WIDTH)
float sub_group_broadcast(const float value, const uint lane)
{
    float found;
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(found) : "f"(value), "r"(lane));
    return found;
}
#endif

#if defined(TILESIZE_N) || defined(DK)
/* Of 32 products of a nibble and a byte, so that nothing saturates. */
int dot_acc_sat_4x8packed_ss_int(const uint a, const uint b, const int sum)
{
    int result;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
    return result;
}
#endif

#ifdef DK
float sub_group_reduce_max(float most)
{
    for (uint distance = SUB_GROUP_WIDTH / 2; distance > 0; distance /= 2)
        most = fmax(most, sub_group_shuffle_xor(most, distance));
    return most;
}

#define sub_group_shuffle(value, lane) (value) /* of kernels that are not launched */
#define sub_group_barrier(memory) barrier(memory) /* where a work-group is one sub-group */

float float_of(const ushort bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

ushort bits_of(const float value)
{
    ushort bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

float4 floats_of(const ushort4 bits)
{
    return (float4)(float_of(bits.x), float_of(bits.y), float_of(bits.z), float_of(bits.w));
}

ushort4 halves_of(const float4 values)
{
    return (ushort4)(bits_of(values.x), bits_of(values.y), bits_of(values.z), bits_of(values.w));
}
#endif
#else
#define get_sub_group_id() 0
#ifdef DK
float4 floats_of(const ushort4 bits)
{
    return vload_half4(0, (const half *)&bits);
}

ushort4 halves_of(const float4 values)
{
    ushort4 bits;
    vstore_half4(values, 0, (half *)&bits);
    return bits;
}

#define get_sub_group_local_id() 0
#define sub_group_reduce_add(value) (value)
#define sub_group_reduce_max(value) (value)
#define sub_group_shuffle_xor(value, distance) (value)
#define sub_group_shuffle(value, lane) (value)
#define sub_group_barrier(memory) barrier(memory)
#ifdef N_SPLIT /* work-items that share a query are no sub-group */
#undef cl_khr_subgroup_shuffle
#endif
int dot_acc_sat_4x8packed_ss_int(const uint a, const uint b, const int sum)
{
    const int4 products = convert_int4(as_char4(a)) * convert_int4(as_char4(b));
    return sum + products.x + products.y + products.z + products.w;
}
#else
#define half _Float16
#define get_sub_group_local_id() ((uint)get_local_id(0))
#define sub_group_reduce_add(value) work_group_reduce_add(value)
#endif
#endif
