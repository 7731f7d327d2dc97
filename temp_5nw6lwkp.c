#define grid_size_x 1
#define grid_size_y 5
#define grid_size_z 1
#define block_size_x 224
#define block_size_y 8
#define block_size_z 1
#define kernel_tuner 1
#line 1


#define domain_width 100
#define domain_height 37
#line 1 "stencil.cl"




__kernel void stencil_kernel(__global float *x_new, __global float *x_old) {
    int x = get_group_id(0) * block_size_x + get_local_id(0);
    int y = get_group_id(1) * block_size_y + get_local_id(1);

    if (y>0 && y<domain_height-1 && x>0 && x<domain_width-1) {

    x_new[y*domain_width+x] = ( x_old[ (y  ) * domain_width + (x  ) ] +
                                x_old[ (y  ) * domain_width + (x-1) ] +
                                x_old[ (y  ) * domain_width + (x+1) ] +
                                x_old[ (y+1) * domain_width + (x  ) ] +
                                x_old[ (y-1) * domain_width + (x  ) ] ) / 5.0f;

    }
}

