"""The pure stages of a trigger: admit, bound, combine, advance."""
