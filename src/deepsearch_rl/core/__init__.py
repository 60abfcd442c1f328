"""What every stage needs: records, files, params, errors, the state of a stage and its scratch folder."""
