"""Access to OpenCL: `discovery` finds devices, `session` builds, launches and times kernels on one of them."""
