/* What ggml's kernels call and a driver does not name, by what its hardware has for it. With BY_PTX for NVIDIA, where a
   sub-group is (a part of) the 32 work-items that run in step, as in any OpenCL that has sub-groups there; otherwise for
   PoCL 7, where a work-group is one sub-group, and half precision is the C compiler's. */
#ifdef BY_PTX
#ifdef SIMDGROUP_WIDTH
#define SUB_GROUP_WIDTH SIMDGROUP_WIDTH
#else
#define SUB_GROUP_WIDTH N_SIMDWIDTH
#endif
#define get_sub_group_id() ((uint)get_local_id(0) / SUB_GROUP_WIDTH)
#define get_sub_group_local_id() ((uint)get_local_id(0) % SUB_GROUP_WIDTH)

#if defined(N_SIMDWIDTH)
float sub_group_reduce_add(float sum)
{
    for (uint distance = SUB_GROUP_WIDTH / 2; distance > 0; distance /= 2) {
        float other;
        asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(other) : "f"(sum), "r"(distance));
        sum += other;
    }
    return sum;
}
#elif defined(SIMDGROUP_WIDTH)
float sub_group_broadcast(const float value, const uint lane)
{
    float found;
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(found) : "f"(value), "r"(lane));
    return found;
}
#elif defined(TILESIZE_N)
/* Of 32 products of a nibble and a byte, so that nothing saturates. */
int dot_acc_sat_4x8packed_ss_int(const uint a, const uint b, const int sum)
{
    int result;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
    return result;
}
#endif
#else
#define half _Float16
#define get_sub_group_id() 0
#define get_sub_group_local_id() ((uint)get_local_id(0))
#define sub_group_reduce_add(value) work_group_reduce_add(value)
#endif
