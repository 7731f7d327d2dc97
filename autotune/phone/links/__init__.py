"""Links to devices of other machines: each starts an agent (`phone/agent`) and exchanges frames with it by a pipe."""
