"""What only the tiny and smoke profiles need: a generated world, its grammar, pretraining and the scripted teacher."""
